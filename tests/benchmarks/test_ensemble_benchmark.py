"""The benchmark of ensembles in one batch: it times both learners in turns, and writes the ratio."""

from __future__ import annotations

import json

import pytest

from vecenv.benchmarks.throughput import ensemble
from vecenv.benchmarks.throughput.ensemble import EnsembleConfig


@pytest.mark.nightly
def test_an_ensemble_is_timed_beside_one_learner(tmp_path, capsys):
    config = EnsembleConfig(
        ("order books",), members=2, num_envs=8, threads=(1,), rounds=3, compile=False, output=tmp_path
    )
    result = ensemble.main(config)
    (file,) = tmp_path.iterdir()
    assert json.loads(file.read_text()) == json.loads(json.dumps(result))
    assert [(each["part"], each["threads"]) for each in result["measured"]] == [("rollout", 1), ("update", 1)]
    for each in result["measured"]:
        assert each["ratio"] == pytest.approx(each["all"] / each["one"]) and each["one"] > 0 and each["cpu_ratio"] > 0
    assert "order books" in capsys.readouterr().out
    with pytest.raises(ValueError, match="unknown workloads none such; there are symbols, flat, order books"):
        ensemble.main(EnsembleConfig(("none such",)))
