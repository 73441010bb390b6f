"""``vecenv worldmodel fit``: what is kept, small markets, interruptions, and what it tells."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from tests.worldmodel.neural_market import TINY, tiny_network
from vecenv.market.sources import read_bars
from vecenv.market.synthetic import synthetic_bars
from vecenv.tasks.commands.cli import INTERRUPTED, main
from vecenv.worldmodel.commands import fit as fit_command
from vecenv.worldmodel.commands.fit import best_path, tell_kept, tell_market, tell_result, tell_seen
from vecenv.worldmodel.network.checkpoint import load_network, save_network
from vecenv.worldmodel.network.market_network import DRIFT_SIZES, NetworkSettings
from vecenv.worldmodel.sampling import stationary
from vecenv.worldmodel.sampling.training_market import Split, TrainingMarket
from vecenv.worldmodel.training import coupling, drift
from vecenv.worldmodel.training import fit as training
from vecenv.worldmodel.training.fit import Validation

DAYS = 340
LAST = DAYS - 60
"""First day of validation: of so few days the last sixty."""


@pytest.fixture(scope="module")
def market(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("market") / "mine.parquet"
    bars = synthetic_bars(1, DAYS, 5, seed=0)
    table = pd.DataFrame(bars.ohlcv[0].reshape(-1, 5).numpy(), columns=["Open", "High", "Low", "Close", "Volume"])
    table.insert(0, "Ticker", np.tile(bars.symbols, DAYS))
    table.insert(0, "Date", np.repeat(bars.dates, 5))
    table.to_parquet(path, index=False)
    return path


@pytest.fixture(scope="module")
def initial(market, tmp_path_factory) -> Path:
    """A small checkpoint of two markets, chosen on a day of the new validation."""
    path = tmp_path_factory.mktemp("initial") / "initial.safetensors"
    bars = read_bars(market)
    days = {
        "one": {"symbols": [bars.symbols[0]], "validation_end": "2030-01-01"},
        "two": {"symbols": ["X"], "validation_end": "2000-01-03"},
    }
    network = tiny_network(NetworkSettings(TINY.trunk, TINY.head, ("one", "two")))
    save_network(path, network, {"label": "tried", "sources": days}, {})
    return path


@pytest.fixture
def quick(monkeypatch) -> None:
    """Calibration of little effort."""
    monkeypatch.setattr(stationary, "BURN_IN", 5)
    monkeypatch.setattr(drift, "EFFORTS", {size: drift.Effort(starts=4, pairs=16) for size in DRIFT_SIZES})
    monkeypatch.setattr(coupling, "PATHS", 2)


@pytest.fixture
def uncalibrated(monkeypatch) -> None:
    monkeypatch.setattr(fit_command, "calibrate", lambda *_: ({}, {}))


def fit(market: Path, out: Path, *words: object) -> int:
    return main(["worldmodel", "fit", "--market", str(market), "--out", str(out), *map(str, words)])


def fitted(market: Path, out: Path, *words: object) -> dict:
    result = out.with_suffix(".json")
    assert fit(market, out, *words, "--json", result) == 0
    return json.loads(result.read_text())


@pytest.mark.assembly
def test_weights_are_fine_tuned_from_the_nearest_market(market, initial, tmp_path, quick, capsys):
    out = tmp_path / "m.safetensors"
    result = fitted(market, out, "--init", initial, "--steps", 30, "--evaluate-every", 10, "--learning-rate", 0.003)
    zero_shot, first = result["init"]["zero_shot"], result["history"][0]
    nearest = result["init"]["market"]
    assert first["step"] == 0 and first["loss"] is None and first["mine"] == zero_shot[nearest]
    losses = {name: Validation(**score).loss(training.TrainingSettings()) for name, score in zero_shot.items()}
    assert set(losses) == {"one", "two"} and losses[nearest] == min(losses.values())
    assert [entry["step"] for entry in result["history"]] == [0, 10, 20, 30] and result["kept_step"] > 0
    kept = next(entry for entry in result["history"] if entry["step"] == result["kept_step"])
    assert kept["mine"]["joint"] <= first["mine"]["joint"] and kept["mine"]["alone"] <= first["mine"]["alone"]
    saved, bars = load_network(out), read_bars(market)
    assert saved.network.settings.markets == ("mine",) and saved.record["starts"] == {"mine": list(bars.symbols)}
    source, last = saved.record["sources"]["mine"], str(bars.dates[-1])
    assert source["train_end"] == str(bars.dates[LAST - 1]) and source["validation_end"] == last
    assert saved.known_days() == dict.fromkeys(bars.symbols, last) | {bars.symbols[0]: "2030-01-01", "X": "2000-01-03"}
    assert not best_path(out).exists()
    told = capsys.readouterr().out
    assert f"starts from {nearest}" in told and f"those after step {result['kept_step']}" in told
    for part in ("reading", "zero-shot", "training", "mine: coupling", "mine: drift", "mine: starts"):
        assert re.search(rf"{part} +\S+ +100%", told), part
    assert main(["worldmodel", "describe", "--model", str(out)]) == 0
    told = capsys.readouterr().out
    assert source["sha256"] in told and str(bars.dates[0]) in told and f"market {nearest}" in told


@pytest.mark.assembly
def test_an_interrupted_training_of_random_weights(market, tmp_path, uncalibrated, monkeypatch, capsys):
    """Before any step nothing is written; the step of a first Ctrl+C is validated, and then what follows is run."""
    monkeypatch.setattr(fit_command, "NetworkSettings", lambda markets: NetworkSettings(TINY.trunk, 16, markets))
    train_network, out, handler = training.train_network, tmp_path / "m.safetensors", signal.getsignal(signal.SIGINT)

    def interrupted(state, markets, settings, on_step, on_validation, stopped):
        def step(state, loss):
            on_step(state, loss)
            signal.raise_signal(signal.SIGINT)

        train_network(state, markets, settings, step, on_validation, stopped)

    with monkeypatch.context() as patch:
        patch.setattr(fit_command, "train_network", lambda *given: train_network(*given[:-1], lambda: True))
        assert fit(market, out, "--init", "none") == INTERRUPTED and not out.exists()
    assert "nothing is kept" in " ".join(capsys.readouterr().out.split())
    monkeypatch.setattr(fit_command, "train_network", interrupted)
    result = fitted(market, out, "--init", "none", "--evaluate-every", 50)
    assert result["interrupted"] and [entry["step"] for entry in result["history"]] == [1]
    assert result["kept_step"] == 1 and signal.getsignal(signal.SIGINT) is handler
    assert result["init"] == {"weights": "none"} and result["settings"]["learning_rate"] == 1e-3
    told = capsys.readouterr().out
    assert "zero-shot" not in told and "Ended by Ctrl+C" in told


@pytest.mark.assembly
def test_an_interrupted_calibration_tells_what_is_kept(market, initial, tmp_path, uncalibrated, monkeypatch, capsys):
    out = tmp_path / "m.safetensors"

    def stop(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(fit_command, "calibrate", stop)
        words = ("--init", initial, "--steps", 10, "--evaluate-every", 5, "--learning-rate", 0.003)
        assert fit(market, out, *words) == INTERRUPTED
    told = " ".join(capsys.readouterr().out.split())
    assert f"--init {best_path(out)} goes on from them" in told and not out.exists()
    result = fitted(market, out, "--init", best_path(out), "--steps", 1)
    assert result["init"]["market"] == "mine" and out.exists() and not best_path(out).exists()


@pytest.fixture
def console() -> Console:
    return Console(record=True, width=300)


def test_what_is_told_of_a_market(console):
    """Which parts of the model its symbols and days are too few for."""
    told = []
    for symbols in (1, 4, 5):
        bars = synthetic_bars(1, 300, symbols, seed=0)
        market = TrainingMarket.from_bars("m", bars, Split(200, 210, 300))
        # 120 returns are enough for a start without a history, 119 are not.
        market.encoded.valid[0, :80, :1], market.encoded.valid[0, :81, 4:] = False, False
        tell_market(console, market, bars, ("a", "b"))
        told.append(console.export_text().splitlines())
    assert told[0] == [
        "m: 1 symbol, 200 days to train on until a, 90 to validate on until b, none held out for a test",
        "One symbol: the joint part of the model has nothing to learn, it stays as it was",
    ]
    stays = "the coupling of the market's moves needs 5 symbols with nearly all days: it stays 1"
    assert told[1][1:] == [f"3 symbols with nearly all days: {stays}"] and told[2][1].startswith(
        "3 symbols with nearly"
    )
    few = "Symbols with fewer than 120 returns in training, no paths without a history"
    assert told[2][2:] == [f"{few}: {bars.symbols[4]}"]


def test_what_is_told_of_the_weights_and_after_an_interruption(console, tmp_path):
    for last in ("2010-06-01", None, "2010-06-02"):
        known = SimpleNamespace(
            record={"sources": {"one": {"validation_end": last}, "two": {"validation_end": "2030"}}}
        )
        tell_seen(console, "mine", known, "one", "2010-06-01")
    tell_kept(console, tmp_path / "none")
    (tmp_path / "best").touch()
    tell_kept(console, tmp_path / "best")
    seen, nothing, best = console.export_text().splitlines()
    assert seen.startswith("mine has learned from days of one up to 2010-06-02, validation begins after 2010-06-01")
    assert nothing == "Interrupted: nothing is kept, no validation was better than the start"
    assert best.endswith(f"without calibration; --init {tmp_path / 'best'} goes on from them")


def test_what_is_told_of_a_result(console):
    record = {"kept_step": 8, "interrupted": False, "init": {"weights": "none"}}
    record["calibrated"] = {"alone": -2.5, "joint": -2.75}
    tell_result(console, Path("m"), record, "mine")
    record |= {"kept_step": 0, "interrupted": True, "init": {"market": "one"}}
    record["history"] = [{"mine": {"alone": -2.0, "joint": -2.25}}]
    tell_result(console, Path("m"), record, "mine")
    written = "Written to m, after the calibration on the validation days -2.5000 alone, -2.7500 joint"
    assert console.export_text().splitlines() == [
        "The weights that are kept are those after step 8.",
        written,
        "Ended by Ctrl+C. The weights that are kept are those that it started with: no validation was better.",
        f"{written}, zero-shot -2.0000 and -2.2500",
    ]


@pytest.mark.parametrize(
    ("words", "label", "ends"),
    [((), "shipped", ("2024-08-30", "2022-08-31")), (("--model", "judged"), "judged", ("2021-12-31", "2017-12-31"))],
)
def test_named_weights_are_described_with_the_hash_of_their_data(capsys, words, label, ends):
    assert main(["worldmodel", "describe", *words]) == 0
    told = capsys.readouterr().out
    assert f"labelled {label}" in told and all(f"trained until {end}" in told for end in ends)
    assert re.search(r"bars [0-9a-f]{16}\n", told)
