"""``vecenv worldmodel``: runs of its commands, what they keep when they end early, and what they tell."""

import errno
import json
import math
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from tests.worldmodel.neural_market import KNOWN, TEST, TINY, save_judged_model, tiny_network, write_market
from vecenv.learn.checkpoints import state_digest
from vecenv.learn.shards import ranks
from vecenv.market.generators import known_days
from vecenv.market.load import MarketOptions, load_market
from vecenv.market.sources import read_bars
from vecenv.market.synthetic import synthetic_bars
from vecenv.market.validation import MarketDataError
from vecenv.tasks.commands.cli import BAD_INPUT, INTERRUPTED, main
from vecenv.testing.ranks import on_ranks
from vecenv.worldmodel.baselines.resampled import GeometricBrownianMotion, StationaryBootstrap
from vecenv.worldmodel.commands import fit as fit_command
from vecenv.worldmodel.commands import train as train_command
from vecenv.worldmodel.commands import validate as validate_command
from vecenv.worldmodel.commands.fit import best_path, tell_kept, tell_known, tell_market, tell_result, tell_seen
from vecenv.worldmodel.commands.train import _extra, _progress, _restore, running_path
from vecenv.worldmodel.network.checkpoint import load_network, save_network
from vecenv.worldmodel.network.market_network import DRIFT_SIZES, MarketNetwork
from vecenv.worldmodel.network.settings import RUNNING_MEAN_CHAIN, NetworkSettings
from vecenv.worldmodel.sampling import block_paths, stationary
from vecenv.worldmodel.sampling.generator import PathOptions, draw_paths
from vecenv.worldmodel.sampling.rollout import one_thread
from vecenv.worldmodel.sampling.training_market import Split, TrainingMarket
from vecenv.worldmodel.training import coupling, drift
from vecenv.worldmodel.training.fit import TrainingState, Validation, new_state, state_from, train_network
from vecenv.worldmodel.training.settings import TrainingSettings
from vecenv.worldmodel.validation import classifiers, picture
from vecenv.worldmodel.validation.criteria import LAST_YEAR_BOOTSTRAP, criteria
from vecenv.worldmodel.validation.figures import real_figures
from vecenv.worldmodel.validation.report import heading

SETTINGS = NetworkSettings(TINY.trunk, TINY.head, ("m",))
TRAINING = TrainingSettings(steps=4, days=32, evaluate_every=2)
RECORD = {"sources": {"m": {"sha256": "0"}}, "settings": {"steps": 4}, "embargo": 20}


@pytest.fixture(scope="module")
def history(tmp_path_factory) -> Path:
    bars = replace(synthetic_bars(1, 340, (*KNOWN, "DD", "EE"), seed=0), currency="EUR")
    return write_market(tmp_path_factory.mktemp("market") / "mine.parquet", bars)


FULL_DISK = """
import errno, os
from vecenv.worldmodel.commands import generate

def full(table, path):
    if os.environ.get("RANK") == "1":
        raise OSError(errno.ENOSPC, "No space left on device")
    write(table, path)

generate.write_parquet, write = full, generate.write_parquet
"""


DEAD_RANK = """
import os, signal
from vecenv.worldmodel.commands import train
from vecenv.worldmodel.training import fit

train.calibrate = lambda *given: ({}, {})

def faulty(market, *given):
    global calls
    calls += 1
    if calls == 20 and os.environ.get("RANK") == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    return read(market, *given)

calls, read = 0, fit.TrainingMarket.log_prob
fit.TrainingMarket.log_prob = faulty
"""
"""At the end of ten updates, of which each process of two makes two gradients."""


def run(command: str, *words: object, start: Callable[..., int] = main) -> int:
    return start(["worldmodel", command, *map(str, words)])


def train(file: Path, out: Path, *words: object, start: Callable[..., int] = main) -> int:
    small = ("--network.layers", 1, "--network.width", 16, "--network.heads", 2, "--network.hidden", 32)
    small += ("--network.window", 8, "--days", 32, "--evaluate-every", 2, "--bars.steps", 2)
    return run("train", "--market", file, "--out", out, *small, *words, start=start)


@pytest.mark.assembly
def test_training_writes_a_network_with_its_data_and_split(history, tmp_path):
    out, result = tmp_path / "m.safetensors", tmp_path / "result.json"
    assert train(history, out, "--steps", 4, "--label", "tried", "--json", result) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.safetensors", "result.json"]
    told, record, bars = json.loads(result.read_text()), load_network(out).record, read_bars(history)
    assert [entry["step"] for entry in told["history"]] == [2, 4]
    assert [entry["step"] for entry in told["bar_history"]] == [0, 2]
    source, symbols = told["sources"]["mine"], list(bars.symbols)
    dates = [str(bars.dates[day]) for day in (0, 237, 271)]
    assert [source[name] for name in ("first_day", "train_end", "validation_end")] == dates
    assert (source["file"], source["symbols"], source["currency"]) == ("mine.parquet", symbols, "EUR")
    assert record["starts"] == {"mine": symbols} and record["label"] == "tried" and source["sha256"]
    assert record["embargo"] == 20 and record["settings"]["steps"] == 4 and record["bars"]["steps"] == 2


@pytest.mark.nightly
def test_processes_that_are_started_again_train_the_weights_of_one(history, tmp_path, monkeypatch):
    """Without the calibration, which one process makes in any case."""
    monkeypatch.setattr(train_command, "calibrate", lambda *given: ({}, {}))
    fault = tmp_path / "fault.py"
    fault.write_text(DEAD_RANK)
    start = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1"]
    start += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "-m", "vecenv"]

    def by_two(words: list[str]) -> int:
        done = subprocess.run([*start, *words, "--import", str(fault)], capture_output=True, text=True, check=False)
        assert "SIGKILL" in done.stderr or "-9" in done.stderr
        return done.returncode

    weights = []
    with one_thread():
        for name, start_of, words in (("one", main, ("--processes", 1)), ("two", by_two, ())):
            out = tmp_path / f"{name}.safetensors"
            assert train(history, out, "--steps", 12, *words, start=start_of) == 0
            weights.append(load_network(out))
    assert [saved.record["settings"]["shards"] for saved in weights] == [4, 4]
    hashes = [state_digest(saved.network.state_dict()) for saved in weights]
    assert hashes[0] == hashes[1] and weights[0].record["history"] == weights[1].record["history"]


@pytest.fixture(scope="module")
def market() -> TrainingMarket:
    return TrainingMarket.from_bars("m", synthetic_bars(1, 160, 3, seed=1), Split(100, 110, 160))


def trained(market: TrainingMarket, state: TrainingState, stop: int = TRAINING.steps) -> TrainingState:
    train_network(state, [market], TRAINING, lambda *_: None, lambda *_: None, lambda: state.step == stop)
    return state


def test_a_run_that_goes_on_from_its_file_repeats_one_that_was_not_interrupted(market, tmp_path):
    whole, half = trained(market, new_state(SETTINGS, TRAINING)), trained(market, new_state(SETTINGS, TRAINING), 2)
    running, state = tmp_path / "run.safetensors", new_state(SETTINGS, TRAINING)
    record, extra = RECORD | _progress(half), _extra(half)
    save_network(running, half.network, record, extra)
    _restore(state, running, RECORD)
    assert state.step == 2 and _progress(state) == _progress(half)
    trained(market, state)
    assert _progress(state) == _progress(whole) and state.step == 4
    for one, other in ((state.network.state_dict(), whole.network.state_dict()), (_extra(state), _extra(whole))):
        assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
    average = next(name for name in extra if name.startswith("average."))
    moment = next(name for name in extra if name.endswith(".exp_avg"))
    for change, tensors, told in (
        ({"settings": {"steps": 6}}, {}, "its settings are not those of this command"),
        ({"sources": {}}, {}, "its sources are not those of this command"),
        ({}, {average: torch.zeros(3)}, f"its state.{average} is float32 of shape (3,) instead of"),
        ({}, {moment: torch.zeros(3)}, "its optimiser.state.0.exp_avg is float32 of shape (3,) instead of"),
        ({}, {"optimizer.x": torch.zeros(3)}, "its optimiser.state also has x"),
        ({"history": None}, {}, "its record.history is nothing instead of list"),
    ):
        save_network(running, half.network, record | change, extra | tensors)
        with pytest.raises(ValueError) as error:
            _restore(new_state(SETTINGS, TRAINING), running, RECORD)
        assert str(error.value).startswith(f"{running}: {told}")
    save_network(running, half.network, record, extra)
    with pytest.raises(ValueError, match="its network is another, or of other sizes"):
        _restore(new_state(NetworkSettings(TINY.trunk, 8, ("m",)), TRAINING), running, RECORD)
    with pytest.raises(FileNotFoundError, match=r"none\.running\.safetensors"):
        _restore(state, running_path(tmp_path / "none.safetensors"), RECORD)


SHARDED = replace(TRAINING, steps=10, evaluate_every=5, shards=4)


def learned(market: TrainingMarket, network: MarketNetwork, running: Path | None, goes_on: bool) -> str:
    """Return a hash of what ten updates come to, which go on from a file, or stop after five and write it."""
    state, losses, stop = state_from(deepcopy(network), SHARDED), [], None if goes_on or running is None else 5
    if goes_on:
        _restore(state, running, RECORD)
    parts = (lambda _, loss: losses.append(loss), lambda *_: None, lambda: state.step == stop)
    train_network(state, [market], SHARDED, *parts)
    if stop is not None and ranks().number == 0:
        save_network(running, state.network, RECORD | _progress(state), _extra(state))
    return state_digest({**_extra(state), **_progress(state), **state.network.state_dict(), "losses": losses[-5:]})


def test_any_number_of_ranks_trains_and_goes_on_as_one(market, tmp_path):
    """Without dropout, whose numbers threads have in common; with it tests train by processes."""
    network = new_state(NetworkSettings(replace(TINY.trunk, dropout=0.0), TINY.head, ("m",)), SHARDED).network
    running = tmp_path / "run.safetensors"
    with one_thread():
        whole = learned(market, network, None, False)
        for count in (2, 4):
            assert on_ranks(count, lambda _: learned(market, network, None, False)) == [whole] * count
        assert len({*on_ranks(2, lambda _: learned(market, network, running, False)), whole}) == 2
        for count in (1, 4):
            assert on_ranks(count, lambda _: learned(market, network, running, True)) == [whole] * count
        with pytest.raises(ValueError, match="4 shards cannot be shared evenly by 3 processes: take 2 or 4"):
            on_ranks(3, lambda _: learned(market, network, None, False))
        # No day further back than is read before a shard has a part in this network: gradients are those of one shard.
        few = replace(SHARDED, steps=1)
        moments = [{}, {}]
        for shards, found in zip((1, 4), moments, strict=True):
            state = state_from(deepcopy(network), few)
            train_network(state, [market], replace(few, shards=shards), lambda *_: None, lambda *_: None)
            found |= {name: tensor for name, tensor in _extra(state).items() if name.endswith(".exp_avg")}
    torch.testing.assert_close(moments[1], moments[0], rtol=1e-3, atol=1e-6)
    with pytest.raises(ValueError, match="m: 2 days to train on for 4 shards"):
        learned(replace(market, split=Split(3, 110, 160)), network, None, False)


def test_a_full_disk_ends_training_in_a_sentence_that_names_what_is_kept(history, tmp_path, monkeypatch, capsys):
    def full(path, network, record, extra):
        if record["step"] == 4:
            raise OSError(errno.ENOSPC, "No space left on device")
        save_network(path, network, record, extra)

    def validated_twice(state, markets, settings, on_step, on_validation):
        for state.step in (2, 4):
            on_step(state, 0.5)
            on_validation(state, {"mine": Validation(1.0, 2.0, 3.0)})

    out = tmp_path / "m.safetensors"
    monkeypatch.setattr(train_command, "save_network", full)
    monkeypatch.setattr(train_command, "train_network", validated_twice)
    assert train(history, out, "--steps", 4) == BAD_INPUT
    told = capsys.readouterr()
    kept = f"the checkpoint of step 2, {running_path(out)}, is kept"
    assert told.err == f"vecenv worldmodel: error: {tmp_path}: the disk is full; {kept}\n"
    assert "step 2: mine: 1.0000 alone, 2.0000 joint" in told.out
    assert list(tmp_path.iterdir()) == [running_path(out)]


@pytest.fixture(scope="module")
def initial(history, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("initial") / "initial.safetensors"
    one = {"symbols": [KNOWN[0]], "validation_end": "2030-01-01"}
    two = {"symbols": ["X"], "validation_end": "2000-01-03"}
    network = tiny_network(NetworkSettings(TINY.trunk, TINY.head, ("one", "two")))
    save_network(path, network, {"label": "tried", "sources": {"one": one, "two": two}}, {})
    return path


def fitted(market: Path, out: Path, *words: object) -> dict:
    result = out.with_suffix(".json")
    assert run("fit", "--market", market, "--out", out, *words, "--json", result) == 0
    return json.loads(result.read_text())


@pytest.mark.assembly
def test_weights_are_fine_tuned_from_the_nearest_market(history, initial, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(stationary, "BURN_IN", 5)
    monkeypatch.setattr(drift, "EFFORTS", {size: drift.Effort(starts=4, pairs=16) for size in DRIFT_SIZES})
    monkeypatch.setattr(coupling, "PATHS", 2)
    out = tmp_path / "m.safetensors"
    result = fitted(history, out, "--init", initial, "--steps", 30, "--evaluate-every", 10, "--learning-rate", 0.003)
    scores, nearest, entries = result["init"]["zero_shot"], result["init"]["market"], result["history"]
    losses = {name: Validation(**score).loss(TrainingSettings()) for name, score in scores.items()}
    assert set(losses) == {"one", "two"} and losses[nearest] == min(losses.values())
    assert entries[0] == {"step": 0, "loss": None, "mine": scores[nearest]}
    assert [entry["step"] for entry in entries] == [0, 10, 20, 30] and result["kept_step"] > 0
    kept = next(entry["mine"] for entry in entries if entry["step"] == result["kept_step"])
    assert all(kept[name] <= entries[0]["mine"][name] for name in ("alone", "joint"))
    saved, bars = load_network(out), read_bars(history)
    assert saved.network.settings.markets == ("mine",) and saved.record["starts"] == {"mine": list(bars.symbols)}
    source, last = saved.record["sources"]["mine"], str(bars.dates[-1])
    assert source["train_end"] == str(bars.dates[279]) and source["validation_end"] == last
    assert saved.known_days() == dict.fromkeys(bars.symbols, last) | {KNOWN[0]: "2030-01-01", "X": "2000-01-03"}
    assert not best_path(out).exists() and run("describe", "--model", out) == 0
    told = capsys.readouterr().out
    assert all(each in told for each in (f"starts from {nearest}", source["sha256"], f"market {nearest}"))
    for part in ("reading", "zero-shot", "training", "mine: coupling", "mine: drift", "mine: starts"):
        assert re.search(rf"{part} +\S+ +100%", told), part


@pytest.mark.assembly
def test_what_is_kept_after_interruptions(history, initial, tmp_path, monkeypatch, capsys):
    """Before any step nothing; in the calibration the best weights; a first Ctrl+C in training is as an end of it."""
    out, handler, calibrations = tmp_path / "m.safetensors", signal.getsignal(signal.SIGINT), []

    def interrupted(state, markets, settings, on_step, on_validation, stopped):
        def step(state, loss):
            on_step(state, loss)
            signal.raise_signal(signal.SIGINT)

        train_network(state, markets, settings, step, on_validation, stopped)

    def calibrate(*_):
        calibrations.append(1)
        if len(calibrations) == 1:
            raise KeyboardInterrupt
        return {}, {}

    monkeypatch.setattr(fit_command, "calibrate", calibrate)
    monkeypatch.setattr(fit_command, "NetworkSettings", lambda markets: NetworkSettings(TINY.trunk, 16, markets))
    words = ("fit", "--market", history, "--out", out)
    with monkeypatch.context() as patch:
        patch.setattr(fit_command, "train_network", lambda *given: train_network(*given[:-1], lambda: True))
        assert run(*words, "--init", "none") == INTERRUPTED and not out.exists()
    assert "nothing is kept" in " ".join(capsys.readouterr().out.split())
    words += ("--init", initial, "--steps", 10, "--evaluate-every", 5, "--learning-rate", 0.003)
    assert run(*words) == INTERRUPTED and not out.exists()
    assert f"--init {best_path(out)} goes on from them" in " ".join(capsys.readouterr().out.split())
    # They are neither lost to a run that begins anew nor taken for a whole model.
    assert run(*words) == BAD_INPUT and best_path(out).exists()
    assert f"best.safetensors is left of a fit that did not end: --init {best_path(out)}" in capsys.readouterr().err
    with pytest.raises(
        ValueError, match="holds weights of an unfinished training, without days from which paths start"
    ):
        draw_paths(best_path(out), PathOptions(1))
    assert fitted(history, out, "--init", best_path(out), "--steps", 1)["init"]["market"] == "mine"
    monkeypatch.setattr(fit_command, "train_network", interrupted)
    capsys.readouterr()
    result = fitted(history, out, "--init", "none", "--evaluate-every", 50)
    assert result["interrupted"] and [entry["step"] for entry in result["history"]] == [1]
    assert result["kept_step"] == 1 and signal.getsignal(signal.SIGINT) is handler
    assert result["init"] == {"weights": "none"} and result["settings"]["learning_rate"] == 1e-3
    told = capsys.readouterr().out
    assert "zero-shot" not in told and "Ended by Ctrl+C" in told


def test_what_is_told_of_a_fit(tmp_path):
    console, told = Console(record=True, width=300), []
    for symbols in (1, 4, 5):
        bars = synthetic_bars(1, 300, symbols, seed=0)
        market = TrainingMarket.from_bars("m", bars, Split(200, 210, 300))
        # 120 returns are enough for a start without a history, 119 are not.
        market.encoded.valid[0, :80, :1], market.encoded.valid[0, :81, 4:] = False, False
        tell_market(console, market, bars, ("a", "b"))
        told.append([line[:51] for line in console.export_text().splitlines()])
    assert told[0] == [
        "m: 1 symbol, 200 days to train on until a, 90 to va",
        "One symbol: the joint part of the model has nothing",
    ]
    assert told[1][1:] == ["3 symbols with nearly all days: the coupling of the"]
    assert told[2][1:] == [*told[1][1:], "Symbols with fewer than 120 returns in training, no"]
    for last in ("2010-06-01", None, "2010-06-02"):
        sources = {"one": {"validation_end": last}, "two": {"validation_end": "2030"}}
        tell_seen(console, "mine", SimpleNamespace(record={"sources": sources}), "one", "2010-06-01")
    (seen,) = console.export_text().splitlines()
    assert seen.startswith("mine has learned from days of one up to 2010-06-02, validation begins after 2010-06-01")
    # Before the work: of the symbols of the file, not of others, and of days of the validation alone.
    initial = SimpleNamespace(known_days=lambda: {"A": "2010-06-02", "B": "2010-06-01", "C": "2030-01-01"})
    assert tell_known(console, "mine", initial, ("A", "B"), "2010-06-01") == {"A": "2010-06-02"}
    assert tell_known(console, "mine", initial, ("B",), "2010-06-01") == {}
    assert tell_known(console, "mine", initial, ("D",), "2010-06-01") == {}
    both, known, one = console.export_text().splitlines()
    assert both.startswith("mine has learned 2 of the 2 symbols: expect") and one.startswith(
        "mine has learned 1 of the 1"
    )
    assert known.startswith(
        "mine has learned from days of A up to 2010-06-02, validation begins after 2010-06-01: zero"
    )
    (tmp_path / "best").touch()
    for kept in ("none", "best"):
        tell_kept(console, tmp_path / kept)
    nothing, best = console.export_text().splitlines()
    assert "nothing is kept" in nothing and f"--init {tmp_path / 'best'} goes on" in best
    record = {"kept_step": 8, "interrupted": False, "init": {}, "calibrated": {"alone": -2.5, "joint": -2.75}}
    tell_result(console, Path("m"), record, "mine")
    record |= {"kept_step": 0, "interrupted": True, "init": {"market": "one"}}
    tell_result(console, Path("m"), record | {"history": [{"mine": {"alone": -2.0, "joint": -2.25}}]}, "mine")
    first, written, second, last = console.export_text().splitlines()
    assert first.endswith("kept are those after step 8.") and written.endswith(" -2.5000 alone, -2.7500 joint")
    assert second.startswith("Ended by Ctrl+C.") and "those that it started with" in second
    assert last == f"{written}, zero-shot -2.0000 and -2.2500"


def test_named_weights_are_described_with_the_hash_of_their_data(capsys):
    for words, *told in (((), "shipped", "2024-08-30", "2022-08-31"), (("--model", "judged"), "judged", "2021-12-31")):
        assert run("describe", *words) == 0
        shown = capsys.readouterr().out
        assert all(each in shown for each in told) and re.search(r"bars [0-9a-f]{16}\n", shown)


@pytest.mark.filterwarnings("ignore:.*emulates bfloat16")
def test_generated_paths_are_markets_that_go_on_from_the_history(started_model, history, tmp_path, capsys):
    past, files = read_bars(history, KNOWN, end="2010-12-31"), {}
    common = ("generate", "--model", started_model, "--paths", 2, "--keep", 30)
    after = ("--history", history, "--market", "one", "--symbols", *KNOWN, "--start", "2010-12-31", "--days", 15)
    nothing = ("--symbols", "CC", "AA", "--days", 3)
    for name, words in (("paths", after), ("halved", (*after, "--bf16")), ("nothing", nothing)):
        assert run(*common, "--out", tmp_path / name, *words) == 0
        files[name] = sorted((tmp_path / name).glob("*.parquet"))
    first, second, halved = (read_bars(file) for file in (*files["paths"], files["halved"][0]))
    assert first.currency == "EUR" and len(first.dates) == 45 and first.dates[29] == past.dates[-1]
    assert str(first.dates[30]) == "2011-01-03"
    assert bool((first.ohlcv[0, :30] == past.ohlcv[0, -30:]).all())
    assert bool((first.ohlcv[0, 30:] != second.ohlcv[0, 30:]).any())
    assert float((first.ohlcv[0, 30, :, 3] / past.ohlcv[0, -1, :, 3]).log().abs().max()) < 0.5
    assert torch.equal(halved.ohlcv[:, :30], first.ohlcv[:, :30])
    assert 0 < float((halved.ohlcv[0, 30, :, 3] / first.ohlcv[0, 30, :, 3]).log().abs().max()) < 0.005
    generated = draw_paths(started_model, PathOptions(2, 255, ["CC", "AA"]))
    for path, file in enumerate(files["nothing"]):
        assert bool((read_bars(file, ["CC", "AA"]).ohlcv[0] == generated.ohlcv[path, -33:]).all())
    assert "2 paths of 15 days of 3 symbols after 2010-12-31" in " ".join(capsys.readouterr().out.split())
    # The folder is a market of two paths, on which the days before the drawn ones are not traded.
    tape = load_market(tmp_path / "paths", MarketOptions(features=("daily_change",)))
    assert (tape.num_paths, tape.num_days, tape.currency, len(tape.split_paths(0.5))) == (2, 45, "EUR", 2)
    assert torch.allclose(tape.ohlcv[1, :, :, 3].double(), second.ohlcv[0, :, :, 3], rtol=1e-3) and tape.first_day == 30
    assert known_days(tmp_path / "paths") == load_network(started_model).known_days()
    assert run(*common, "--out", tmp_path / "x.parquet", *nothing) == 2 and not (tmp_path / "x.parquet").exists()
    assert "out is a folder, for a Parquet file of each path" in capsys.readouterr().err


@pytest.mark.nightly
@pytest.mark.parametrize("after", [True, False])
def test_processes_write_the_files_of_one(started_model, history, tmp_path, after):
    """A rank that cannot write leaves a folder that is not read."""
    words = ["--model", started_model, "--days", 3, "--keep", 30, "--market", "one", "--symbols", *KNOWN]
    words += ["--paths", 7, "--history", history] if after else ["--paths", 20, "--drawdown", "6%", "--days", 15]

    def by_two(out: str, *more: object) -> subprocess.CompletedProcess:
        given = ["worldmodel", "generate", *words, "--out", tmp_path / out, "--processes", 2, *more]
        command = [sys.executable, "-m", "vecenv", *map(str, given)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert run("generate", *words, "--out", tmp_path / "one") == 0
    done = by_two("two")
    assert done.returncode == 0, done.stderr
    one, two = ({file.name: file.read_bytes() for file in (tmp_path / name).iterdir()} for name in ("one", "two"))
    assert one == two and len(one) == (8 if after else 22)
    fault = tmp_path / "fault.py"
    fault.write_text(FULL_DISK)
    done = by_two("full", "--import", fault)
    assert done.returncode == BAD_INPUT
    told = done.stderr.strip().splitlines()[-1]
    assert re.fullmatch(r"vecenv worldmodel: error: rank 1 \(process \d+\) failed: .*No space left on device", told)
    with pytest.raises(MarketDataError, match="not written to its end"):
        load_market(tmp_path / "full", MarketOptions())


@pytest.mark.filterwarnings("ignore:.*looks like an unadjusted split")
@pytest.mark.parametrize("after", [True, False])
def test_stress_paths_fall_as_far_and_have_weights(started_model, history, tmp_path, capsys, after):
    out = tmp_path / "paths"
    words = ["--drawdown", "6%", "--paths", 20, "--days", 15, "--keep", 30, "--market", "one", "--symbols", *KNOWN]
    words += ["--history", history, "--start", "2010-12-31"] if after else []
    assert run("generate", "--model", started_model, "--out", out, *words) == 0
    told = json.loads((out / "weights.json").read_text())
    weight, (low, high), error = told["probability"] / 20, told["interval_95"], told["relative_standard_error"]
    assert math.log(told["probability"] / low) == pytest.approx(1.96 * error) and low < told["probability"] < high
    assert (told["drawdown"], told["days"]) == (0.06, 15) and told["levels"][-1]["drawdown"] == 0.06
    assert list(told["paths"]) == sorted(file.name for file in out.glob("*.parquet")) and len(told["paths"]) == 20
    for name, path in told["paths"].items():
        bars = read_bars(out / name)
        level = bars.ohlcv[0, 29:, :, 3].log().mean(-1)
        falls = 1 - (level - level.cummax(0).values).exp()
        assert len(bars.dates) == 45 and str(bars.dates[29 + int((falls >= 0.06).long().argmax())]) == path["reached"]
        assert float(falls.max()) >= 0.06 and path["weight"] == weight
    told = capsys.readouterr().out
    assert "6.0% drawdown: reached by" in told and "6.0% drawdown within 15 days: probability" in told
    assert read_bars(out / name).currency == ("EUR" if after else None)


@pytest.mark.assembly
def test_a_validation_has_every_figure_of_every_model(validated_file, ends, tmp_path, monkeypatch):
    monkeypatch.setitem(block_paths.LIMITS, "cpu", block_paths.BlockLimits(32, 2, 32, 32, 1, 1))
    for name, few in (("GRU_STEPS", 5), ("LSTM_EPOCHS", 1), ("TREES", 10)):
        monkeypatch.setattr(classifiers, name, few)
    monkeypatch.setattr(validate_command, "real_figures", partial(real_figures, draws=20))
    last_year, legends = partial(StationaryBootstrap.fit, last_days=250), []
    monkeypatch.setattr(picture, "legend_below", lambda _, axes: legends.append(axes.get_legend_handles_labels()[1]))
    monkeypatch.setattr(validate_command, "BASELINES", (GeometricBrownianMotion.fit, last_year))
    out, file = tmp_path / "out", tmp_path / "result.json"
    models = [save_judged_model(tmp_path / f"{seed}.safetensors", ends, seed=seed) for seed in (0, 1)]
    chain = save_judged_model(tmp_path / "c.safetensors", ends, "running mean")
    words = ["--history", validated_file, "--out", out, "--model", *models, "--beside", chain, "--market", "a"]
    words += ["--paths", 8, "--draws", 199, "--every", 20, "--forecast-every", 60, "--memory", 251]
    words += ["--long-days", 80, "--temperatures", 0.5, "--discriminator-seeds", 1]
    assert run("validate", *words, "--json", file) == 0
    result = json.loads(file.read_text())
    assert sorted(path.name for path in out.iterdir()) == ["validation.json", "validation.md", "validation.png"]
    assert json.loads((out / "validation.json").read_text()) == result
    assert list(result["models"]) == ["neural", RUNNING_MEAN_CHAIN, "GBM", LAST_YEAR_BOOTSTRAP]
    keys = {row.key for row in criteria(80)}
    for name, figures in result["models"].items():
        lacking = {"nll", "joint_nll"} if name == LAST_YEAR_BOOTSTRAP else set()
        assert keys - set(figures) == lacking and set(figures) <= keys, name
        assert all(math.isfinite(figure["mean"]) for figure in figures.values())
    assert result["symbols"] == ["S0", "S1", "S2", "S3"] and result["left_out"] == ["S4", "S5"]
    assert result["test"]["days"] == TEST and result["origins"] == 4 and result["forecast_days"] == 2
    assert result["judged"] == "neural" and list(result["temperatures"]) == ["0.5"]
    # Without an interval of its own a figure shows its range over the weights.
    drift = result["models"]["neural"]["drift"]
    assert drift["low"] < drift["high"] and drift["mean"] == pytest.approx((drift["low"] + drift["high"]) / 2)
    means = {name: figures["crps"]["mean"] for name, figures in result["models"].items()}
    met = {name: "{met} of {of}".format(**totals["all"]) for name, totals in result["counts"].items()}
    assert legends == [["real", *(f"{heading(name)}: {told} criteria" for name, told in met.items())]]
    assert set(result["differences"]["GBM"]["energy_score"]) == set(means) - {"GBM"}
    for name, less in result["differences"]["neural"]["crps"].items():
        assert less["mean"] == pytest.approx(means["neural"] - means[name], abs=1e-4)
    assert "neural: means over 2 weights" in (out / "validation.md").read_text()
