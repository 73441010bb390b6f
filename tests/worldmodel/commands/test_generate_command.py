"""``vecenv worldmodel generate``: files of paths after a history and without one, and of drawdowns with weights."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.worldmodel.neural_market import KNOWN
from vecenv.market.sources import read_bars
from vecenv.market.synthetic import business_days, synthetic_bars
from vecenv.tasks.commands.cli import main
from vecenv.worldmodel.commands.generate import GenerateSettings, _long_table, _weights
from vecenv.worldmodel.sampling.generator import PathOptions, draw_paths
from vecenv.worldmodel.sampling.splitting import Level, Split, Trajectories


@pytest.fixture(scope="module")
def history(tmp_path_factory) -> Path:
    bars = replace(synthetic_bars(1, 300, KNOWN, seed=0), currency="EUR")
    path = tmp_path_factory.mktemp("market") / "prices.parquet"
    _long_table(bars, bars.dates, bars.ohlcv[0]).to_parquet(path, index=False)
    return path


def generate(model: Path, out: Path, *words: object) -> None:
    assert main(["worldmodel", "generate", "--model", str(model), "--out", str(out), *map(str, words)]) == 0


@pytest.mark.filterwarnings("ignore:.*emulates bfloat16")
def test_generated_paths_are_markets_that_go_on_from_the_history(started_model, history, tmp_path, capsys):
    out = tmp_path / "paths"
    words = ("--history", history, "--market", "one", "--start", "2010-12-31", "--paths", 2, "--days", 15, "--keep", 30)
    generate(started_model, out, *words)
    assert sorted(file.name for file in out.iterdir()) == ["path_0000.parquet", "path_0001.parquet"]
    past = read_bars(history, end="2010-12-31")
    first, second = (read_bars(file) for file in sorted(out.iterdir()))
    assert first.currency == "EUR" and len(first.dates) == 45 and first.dates[29] == past.dates[-1]
    assert str(first.dates[30]) == "2011-01-03"
    assert bool((first.ohlcv[0, :30] == past.ohlcv[0, -30:]).all())
    assert bool((first.ohlcv[0, 30:] != second.ohlcv[0, 30:]).any())
    assert float((first.ohlcv[0, 30, :, 3] / past.ohlcv[0, -1, :, 3]).log().abs().max()) < 0.5
    generate(started_model, tmp_path / "halved", *words, "--bf16")
    halved = read_bars(tmp_path / "halved" / "path_0000.parquet").ohlcv
    assert torch.equal(halved[:, :30], first.ohlcv[:, :30])
    assert 0 < float((halved[0, 30, :, 3] / first.ohlcv[0, 30, :, 3]).log().abs().max()) < 0.005
    assert "2 paths of 15 days of 3 symbols after 2010-12-31" in " ".join(capsys.readouterr().out.split())


def test_generated_paths_need_no_history(started_model, tmp_path):
    generate(started_model, tmp_path / "paths", "--symbols", "CC", "AA", "--paths", 2, "--days", 3, "--keep", 30)
    generated = draw_paths(started_model, PathOptions(2, 255, ["CC", "AA"]))
    for path, file in enumerate(sorted((tmp_path / "paths").iterdir())):
        assert bool((read_bars(file, ["CC", "AA"]).ohlcv[0] == generated.ohlcv[path, -33:]).all())


@pytest.mark.filterwarnings("ignore:.*looks like an unadjusted split")
@pytest.mark.parametrize("after", [True, False])
def test_stress_paths_fall_as_far_and_have_weights(started_model, history, tmp_path, capsys, after):
    """After a history and without one."""
    out = tmp_path / "paths"
    words = ["--drawdown", "6%", "--paths", 20, "--days", 15, "--keep", 30, "--market", "one"]
    generate(started_model, out, *words, *(["--history", history, "--start", "2010-12-31"] if after else []))
    weights = json.loads((out / "weights.json").read_text())
    assert list(weights["paths"]) == sorted(file.name for file in out.glob("*.parquet")) and len(weights["paths"]) == 20
    for name, path in weights["paths"].items():
        bars = read_bars(out / name)
        level = bars.ohlcv[0, 29:, :, 3].log().mean(-1)
        falls = 1 - (level - level.cummax(0).values).exp()
        assert len(bars.dates) == 45 and str(bars.dates[29 + int((falls >= 0.06).long().argmax())]) == path["reached"]
        assert float(falls.max()) >= 0.06
    told = capsys.readouterr().out
    assert "6.0% drawdown: reached by" in told and "6.0% drawdown within 15 days: probability" in told
    assert read_bars(out / name).currency == ("EUR" if after else None)


def test_the_file_of_weights_by_hand():
    scores = torch.tensor([[0.0, 0.1, 0.3], [0.0, 0.2, 0.1]])
    paths = Trajectories(scores, scores, torch.zeros(2).long(), torch.zeros(2).long())
    found = Split(0.125, 0.5, (Level(0.1, 1, 2), Level(0.2, 1, 4)), paths)
    settings = GenerateSettings(Path(), days=3)
    told = _weights(settings, found, business_days(3), ["a", "b"])
    factor = 2.718281828 ** (1.96 * 0.5)
    assert told.pop("interval_95") == pytest.approx([0.125 / factor, 0.125 * factor])
    assert told == {
        "drawdown": 0.2,
        "days": 3,
        "probability": 0.125,
        "relative_standard_error": 0.5,
        "levels": [{"drawdown": 0.1, "reached": 1, "paths": 2}, {"drawdown": 0.2, "reached": 1, "paths": 4}],
        "paths": {
            "a": {"weight": 0.0625, "reached": str(business_days(3)[2])},
            "b": {"weight": 0.0625, "reached": str(business_days(3)[1])},
        },
    }
