"""``vecenv worldmodel fit`` and ``describe``: what is kept, small markets, interruptions, refusals before any work."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from vecenv.market.sources import read_bars
from vecenv.market.synthetic import synthetic_bars
from vecenv.tasks.commands.cli import BAD_INPUT, INTERRUPTED, main
from vecenv.worldmodel.commands import fit as fit_command
from vecenv.worldmodel.commands.fit import best_path
from vecenv.worldmodel.network.checkpoint import load_network, save_network
from vecenv.worldmodel.network.market_network import DRIFT_SIZES, MarketNetwork, NetworkSettings
from vecenv.worldmodel.network.one_market import one_market_network
from vecenv.worldmodel.network.transformer import TransformerSettings
from vecenv.worldmodel.sampling import stationary
from vecenv.worldmodel.training import coupling, drift
from vecenv.worldmodel.training import fit as training
from vecenv.worldmodel.training.fit import Validation

DAYS = 340
LAST = DAYS - 60
"""First day of validation: of so few days the last sixty."""


def write_market(path: Path, symbols: int = 5, days: int = DAYS, seed: int = 0) -> Path:
    bars = synthetic_bars(1, days, symbols, seed=seed)
    table = pd.DataFrame(bars.ohlcv[0].reshape(-1, 5).numpy(), columns=["Open", "High", "Low", "Close", "Volume"])
    table.insert(0, "Ticker", np.tile(bars.symbols, days))
    table.insert(0, "Date", np.repeat(bars.dates, symbols))
    table.to_parquet(path, index=False)
    return path


@pytest.fixture(scope="module")
def market(tmp_path_factory) -> Path:
    return write_market(tmp_path_factory.mktemp("market") / "mine.parquet")


@pytest.fixture(scope="module")
def initial(tmp_path_factory) -> Path:
    """A small checkpoint of two markets whose symbols are others."""
    torch.manual_seed(0)
    trunk = TransformerSettings(layers=1, width=16, heads=2, hidden=32, window=8, dropout=0.0)
    network = MarketNetwork(NetworkSettings(trunk=trunk, head=16, markets=("one", "two")))
    path = tmp_path_factory.mktemp("initial") / "initial.safetensors"
    save_network(path, network, {"label": "tried", "sources": {"one": {"symbols": ["AA"]}}}, {})
    return path


@pytest.fixture
def quick(monkeypatch) -> None:
    """Calibration of little effort."""
    monkeypatch.setattr(stationary, "BURN_IN", 5)
    monkeypatch.setattr(drift, "EFFORTS", {size: drift.Effort(starts=4, pairs=16) for size in DRIFT_SIZES})
    monkeypatch.setattr(coupling, "PATHS", 2)


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
    weights = training.TrainingSettings()
    losses = {name: Validation(**score).loss(weights) for name, score in zero_shot.items()}
    assert set(losses) == {"one", "two"} and losses[nearest] == min(losses.values())
    assert [entry["step"] for entry in result["history"]] == [0, 10, 20, 30] and result["kept_step"] > 0
    kept = next(entry for entry in result["history"] if entry["step"] == result["kept_step"])
    assert kept["mine"]["joint"] <= first["mine"]["joint"] and kept["mine"]["alone"] <= first["mine"]["alone"]
    saved, bars = load_network(out), read_bars(market)
    assert saved.network.settings.markets == ("mine",) and saved.record["starts"] == {"mine": list(bars.symbols)}
    source = saved.record["sources"]["mine"]
    assert source["train_end"] == str(bars.dates[LAST - 1]) and source["validation_end"] == str(bars.dates[-1])
    assert not best_path(out).exists()
    told = capsys.readouterr().out
    assert f"starts from {nearest}" in told and f"those after step {result['kept_step']}" in told
    for part in ("reading", "zero-shot", "training", "mine: coupling", "mine: drift", "mine: starts"):
        assert re.search(rf"{part} +\S+ +100%", told), part
    assert main(["worldmodel", "describe", "--model", str(out)]) == 0
    told = capsys.readouterr().out
    assert source["sha256"] in told and str(bars.dates[0]) in told and nearest in told


@pytest.mark.nightly
@pytest.mark.parametrize("seen", [True, False])
def test_validation_days_that_the_weights_have_seen_are_told(market, initial, tmp_path, quick, capsys, seen):
    """The initial weights' own validation ends on the first day of the new one, or on the day before."""
    last = str(read_bars(market).dates[LAST if seen else LAST - 1])
    saved, known = load_network(initial), tmp_path / "known.safetensors"
    save_network(known, saved.network, {"sources": {key: {"validation_end": last} for key in ("one", "two")}}, {})
    fitted(market, tmp_path / "m.safetensors", "--init", known, "--steps", 2, "--evaluate-every", 2)
    told = " ".join(capsys.readouterr().out.split())
    assert (f"up to {last}, validation begins after" in told) == seen


@pytest.mark.nightly
def test_the_weights_know_the_days_of_those_that_they_were_fitted_from(market, initial, tmp_path, quick):
    saved, known, out = load_network(initial), tmp_path / "known.safetensors", tmp_path / "m.safetensors"
    own = {str(symbol): str(read_bars(market).dates[-1]) for symbol in read_bars(market).symbols}
    first = next(iter(own))
    days = {
        "one": {"symbols": [first], "validation_end": "2030-01-01"},
        "two": {"symbols": ["X"], "validation_end": "2000-01-03"},
    }
    save_network(known, saved.network, {"sources": days}, {})
    fitted(market, out, "--init", known, "--steps", 2, "--evaluate-every", 2)
    assert load_network(out).known_days() == own | {first: "2030-01-01", "X": "2000-01-03"}


@pytest.mark.nightly
def test_weights_stay_what_they_were_if_no_validation_is_better(market, initial, tmp_path, quick, capsys):
    """A learning rate that wrecks the network: the file holds the zero-shot weights, calibrated."""
    out = tmp_path / "m.safetensors"
    words = ("--steps", 4, "--evaluate-every", 2, "--learning-rate", 10.0)
    result = fitted(market, out, "--init", initial, *words)
    assert result["kept_step"] == 0 and "no validation was better" in capsys.readouterr().out
    begun = one_market_network(load_network(initial).network, result["init"]["market"], "mine").state_dict()
    for name, tensor in load_network(out).network.state_dict().items():
        assert torch.equal(tensor, begun[name]) or name in ("drifts", "couplings", "decays", "shrinkages"), name


@pytest.mark.nightly
def test_returns_are_never_less_likely_than_at_first(market, initial, tmp_path, quick, monkeypatch):
    """The bars' shape gains more than the returns lose: that is not taken."""
    scores = iter([Validation(-3.0, -3.1, 1.0), Validation(-2.99, -3.2, 0.0), Validation(-3.0, -3.11, 0.9)])
    with monkeypatch.context() as patch:
        patch.setattr(fit_command, "_validated", lambda *_: Validation(-3.0, -3.1, 1.0))
        patch.setattr(training, "validate_network", lambda *_: next(scores))
        result = fitted(market, tmp_path / "m.safetensors", "--init", initial, "--steps", 4, "--evaluate-every", 2)
    assert result["kept_step"] == 4


@pytest.mark.assembly
def test_a_model_from_nothing_has_no_zero_shot(market, tmp_path, quick, monkeypatch, capsys):
    small = TransformerSettings(layers=1, width=16, heads=2, hidden=32, window=8)
    monkeypatch.setattr(fit_command, "NetworkSettings", lambda markets: NetworkSettings(small, 16, markets))
    result = fitted(market, tmp_path / "m.safetensors", "--init", "none", "--steps", 4, "--evaluate-every", 2)
    assert result["init"] == {"weights": "none"} and result["settings"]["learning_rate"] == 1e-3
    assert [entry["step"] for entry in result["history"]] == [2, 4] and "zero-shot" not in capsys.readouterr().out


@pytest.mark.assembly
def test_an_interruption_before_the_first_validation_of_random_weights(market, tmp_path, quick, monkeypatch, capsys):
    """The step is validated, so that the weights are not those before it; before any step nothing is written."""
    small = TransformerSettings(layers=1, width=16, heads=2, hidden=32, window=8)
    monkeypatch.setattr(fit_command, "NetworkSettings", lambda markets: NetworkSettings(small, 16, markets))
    train_network, out = training.train_network, tmp_path / "m.safetensors"
    for first in (0, 1):

        def interrupted(state, *rest, first=first):
            stops = iter([False] * first)
            train_network(state, *rest[:-1], lambda: next(stops, True))

        with monkeypatch.context() as patch:
            patch.setattr(fit_command, "train_network", interrupted)
            assert fit(market, out, "--init", "none", "--evaluate-every", 50) == (0 if first else INTERRUPTED)
        assert out.exists() == bool(first)
    assert "nothing is kept" in " ".join(capsys.readouterr().out.split())
    assert load_network(out).record["kept_step"] == 1


@pytest.mark.parametrize(("symbols", "told"), [(1, "the joint part of the model has nothing"), (3, "needs 5 symbols")])
@pytest.mark.assembly
def test_small_markets_are_fitted_and_told(symbols, told, initial, tmp_path, quick, capsys):
    market, out = write_market(tmp_path / "few.parquet", symbols), tmp_path / "m.safetensors"
    fitted(market, out, "--init", initial, "--steps", 2, "--evaluate-every", 2)
    assert told in capsys.readouterr().out
    network = load_network(out).network
    assert network.couplings.tolist() == [1.0] and bool(network.drifts.any())
    paths = tmp_path / "paths"
    words = ("--model", out, "--history", market, "--out", paths, "--paths", 1, "--days", 2)
    assert main(["worldmodel", "generate", *map(str, words)]) == 0
    assert len(read_bars(paths / "path_0000.parquet").symbols) == symbols


@pytest.mark.assembly
def test_symbols_with_few_days_are_told(initial, tmp_path, quick, capsys):
    table = pd.read_parquet(write_market(tmp_path / "mine.parquet"))
    late = table["Ticker"].unique()[1]
    table = table[(table["Ticker"] != late) | (table["Date"] >= table["Date"].unique()[LAST - 30])]
    table.to_parquet(tmp_path / "mine.parquet", index=False)
    result = fitted(
        tmp_path / "mine.parquet", tmp_path / "m.safetensors", "--init", initial, "--steps", 2, "--evaluate-every", 2
    )
    assert late in re.search("no paths without a history: (.*)", capsys.readouterr().out)[1]
    assert late not in result["starts"]["mine"] and len(result["starts"]["mine"]) == 4


@pytest.mark.assembly
def test_a_first_interruption_ends_the_training_and_not_the_calibration(market, initial, tmp_path, quick, monkeypatch):
    """The best weights of the validations so far are written."""
    out, train_network, handler = tmp_path / "m.safetensors", training.train_network, signal.getsignal(signal.SIGINT)

    def interrupted(state, markets, settings, on_step, on_validation, stopped):
        def step(state, loss):
            on_step(state, loss)
            if state.step == 15:
                signal.raise_signal(signal.SIGINT)

        train_network(state, markets, settings, step, on_validation, stopped)

    monkeypatch.setattr(fit_command, "train_network", interrupted)
    words = ("--init", initial, "--steps", 1000, "--evaluate-every", 10, "--learning-rate", 0.003)
    result = fitted(market, out, *words)
    assert result["interrupted"] and [entry["step"] for entry in result["history"]] == [0, 10, 15]
    assert result["kept_step"] in (10, 15)
    assert signal.getsignal(signal.SIGINT) is handler


@pytest.mark.assembly
def test_an_interrupted_calibration_tells_what_is_kept(market, initial, tmp_path, quick, monkeypatch, capsys):
    out = tmp_path / "m.safetensors"
    words = ("--init", initial, "--steps", 10, "--evaluate-every", 5, "--learning-rate", 0.003)

    def stop(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(fit_command, "calibrate", stop)
        assert fit(market, out, *words) == INTERRUPTED
    told = " ".join(capsys.readouterr().out.split())
    assert f"--init {best_path(out)} goes on from them" in told and not out.exists()
    result = fitted(market, out, "--init", best_path(out), "--steps", 1)
    assert result["init"]["market"] == "mine" and out.exists() and not best_path(out).exists()


GIVEN_EFFORT = """
import sys
from vecenv.tasks.commands.cli import main
from vecenv.worldmodel.training import drift
drift.EFFORTS = dict.fromkeys(drift.EFFORTS, drift.Effort(starts=4, pairs=int(sys.argv.pop(1))))
sys.exit(main())
"""
"""Command line in a process of its own, after the pairs of paths that the calibration of the drift draws."""


@pytest.mark.nightly
@pytest.mark.parametrize(("times", "pairs"), [(1, 16), (2, 50_000)])
def test_ctrl_c_in_a_process_of_its_own(market, initial, tmp_path, times, pairs):
    """A first one ends the training, a second one the calibration, which is too long to be over before."""
    out = tmp_path / "m.safetensors"
    words = ["worldmodel", "fit", "--market", market, "--out", out, "--init", initial, "--steps", 100_000]
    words += ["--evaluate-every", 5, "--patience", 100_000, "--learning-rate", 0.003]
    command = [sys.executable, "-u", "-c", GIVEN_EFFORT, str(pairs), *map(str, words)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=tmp_path)
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        said.append(line)
        if line.startswith("step 15:"):
            process.send_signal(signal.SIGINT)
        if line.startswith("Stopping the training"):
            break
    if times == 2:
        process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=120)
    assert process.returncode == (0 if times == 1 else INTERRUPTED), "".join(said) + rest
    assert "Traceback" not in rest
    if times == 2:
        assert f"--init {best_path(out)} goes on" in " ".join(rest.split())
        assert best_path(out).exists() and not out.exists()
    else:
        assert "Ended by Ctrl+C" in rest and load_network(out).record["interrupted"]
        assert load_network(out).record["kept_step"] in (5, 10, 15, 20) and not best_path(out).exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--init", "absent.safetensors"), "absent.safetensors: no checkpoint"),
        (("--out", "m.pt"), "ends in .safetensors"),
        (("--steps", "0"), "steps must be positive, got 0"),
        (("--embargo", "-1"), "embargo must not be negative"),
        (("--embargo", "300"), "340 days, 0 to train on"),
        (("--train-end", "2010-03-31"), "340 days, 43 to train on until 2010-03-31"),
        (("--validation-end", "2010-08-31"), "mine.parquet: 340 days"),
    ],
)
def test_faults_are_told_before_any_work(market, initial, tmp_path, words, told, capsys):
    given = () if words[0] in ("--init",) else ("--init", str(initial))
    out = () if words[0] == "--out" else ("--out", str(tmp_path / "m.safetensors"))
    assert main(["worldmodel", "fit", "--market", str(market), *out, *given, *words]) == BAD_INPUT
    assert told in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_few_days_are_told_with_the_file(initial, tmp_path, capsys):
    market = write_market(tmp_path / "short.parquet", days=200)
    assert fit(market, tmp_path / "m.safetensors", "--init", initial) == BAD_INPUT
    assert f"{market}: 200 days, 120 to train on until" in capsys.readouterr().err
    table = pd.read_parquet(write_market(tmp_path / "holes.parquet", symbols=3))
    symbol, day = table["Ticker"].rank(method="dense"), table["Date"].rank(method="dense")
    table[symbol % 3 == day % 3].to_parquet(tmp_path / "holes.parquet")
    assert fit(tmp_path / "holes.parquet", tmp_path / "m.safetensors", "--init", initial) == BAD_INPUT
    assert "no symbol has more than 120 bars in its 260 days of training" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "label", "ends"),
    [
        ((), "shipped", ("2024-08-30", "2022-08-31")),
        (("--model", "judged"), "judged", ("2021-12-31", "2017-12-31")),
    ],
)
def test_named_weights_are_described_with_the_hash_of_their_data(capsys, words, label, ends):
    assert main(["worldmodel", "describe", *words]) == 0
    told = capsys.readouterr().out
    assert label in told and all(end in told for end in ends)
