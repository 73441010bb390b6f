"""The benchmark of trading on scores beside stock trading."""

from __future__ import annotations

import json

import pytest

from vecenv.benchmarks.throughput.scores import ScoresConfig, main, workloads


@pytest.mark.assembly
def test_the_benchmark_measures_every_workload_and_writes_it(tmp_path):
    small = ScoresConfig(num_envs=4, num_steps=2, num_days=300, rounds=3, device="cpu", compile=False, output=tmp_path)
    result = main(small)
    (path,) = tmp_path.glob("scores-*.json")
    assert json.loads(path.read_text()) == json.loads(json.dumps(result))
    measured = {each["name"]: each for each in result["measured"]}
    assert list(measured) == list(workloads(0.1))
    assert all(each["steps_per_second"] > 0 and each["relative"] > 0 for each in result["measured"])
    assert measured["stock_trading"]["relative"] == 1.0
    # Observed scores are compared with as many other columns.
    wide = measured["both rules, scores observed"]
    assert wide["width"] == measured[wide["beside"]]["width"] > measured["both rules"]["width"]
