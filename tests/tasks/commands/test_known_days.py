"""An evaluation tells if a market model that the agent was trained on has learned from days of the test."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml
from rich.console import Console

import vecenv
from tests.tasks.commands.small_runs import train_args
from vecenv.market.load import known_days
from vecenv.market.tape import MarketTape
from vecenv.system.preset_files import read_values
from vecenv.tasks.commands import cli
from vecenv.tasks.commands.known_before import tell_known_before
from vecenv.worldmodel.network.checkpoint import save_network
from vecenv.worldmodel.network.market_network import MarketNetwork, NetworkSettings
from vecenv.worldmodel.network.named_weights import JUDGED
from vecenv.worldmodel.network.transformer import TransformerSettings

NOTE = "this is no test on unseen days"


@pytest.fixture
def network() -> MarketNetwork:
    torch.manual_seed(0)
    trunk = TransformerSettings(layers=1, width=16, heads=2, hidden=32, window=8)
    return MarketNetwork(NetworkSettings(trunk=trunk, head=16, markets=("one", "two")))


def sources(first: str, second: str) -> dict:
    return {
        "one": {"symbols": ["S0", "S9"], "validation_end": first},
        "two": {"symbols": ["S9"], "validation_end": second},
    }


def test_the_last_day_of_each_symbol_over_all_markets(network, tmp_path):
    model = tmp_path / "model.safetensors"
    save_network(model, network, {"sources": sources("2020-06-01", "2021-03-01")}, {})
    assert known_days(model) == {"S0": "2020-06-01", "S9": "2021-03-01"}
    save_network(model, network, {}, {})
    assert known_days(model) == {}
    assert known_days("synthetic") == known_days("prices.parquet") == {}


def test_shipped_and_judged_weights_tell_their_days():
    judged, shipped = known_days("judged"), known_days("neural")
    assert judged == known_days(JUDGED) and (judged["TCS"], judged["AAPL"]) == ("2022-12-31", "2018-12-31")
    assert shipped.keys() == judged.keys() and (shipped["TCS"], shipped["AAPL"]) == ("2024-12-31", "2022-12-30")


def trained_on(run: Path, place: Path, market: object, **more: object) -> Path:
    """Return a copy of a run that says it was trained on another market."""
    run.mkdir()
    (run / "checkpoint.pt").write_bytes((place / "run" / "checkpoint.pt").read_bytes())
    values = read_values(place / "run" / "settings.yaml") | {"market": str(market), **more}
    (run / "settings.yaml").write_text(yaml.safe_dump(values))
    return run


@pytest.mark.assembly
def test_an_evaluation_tells_it(place, network, tmp_path, capsys):
    model = tmp_path / "model.safetensors"
    save_network(model, network, {"sources": sources("2030-01-01", "2019-01-01")}, {})
    run = trained_on(tmp_path / "run", place, model)
    words = ("evaluate", "--checkpoint", str(run), "--market", str(place / "market.parquet"), "--episodes", "8")
    assert cli.main([*words]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert NOTE in shown and f"{model}, a model" in shown and "2030-01-01" in shown


@pytest.fixture(scope="module")
def tape() -> MarketTape:
    """Days of S0 and S1."""
    return vecenv.make(
        "stock_trading", num_envs=1, market_options={"symbols": ("S0", "S1"), "num_days": 400}
    ).scenario.tape


@pytest.mark.parametrize(
    ("market", "first", "second", "told"),
    [
        ("prices.parquet", 0, -1, True),
        ("prices.parquet", -1, 0, False),
        ("synthetic", 0, 0, False),
    ],
)
def test_only_days_of_the_tests_symbols_are_told(place, network, tape, tmp_path, capsys, market, first, second, told):
    """S0 is known up to the first day of the test or the day before; S9 is not in the test, whose days may be drawn."""
    days = [str(tape.dates[0] + offset) for offset in (first, second)]
    model = tmp_path / "model.safetensors"
    save_network(model, network, {"sources": sources(*days)}, {})
    tell_known_before(Console(), market, tape, [trained_on(tmp_path / "run", place, model)])
    assert (NOTE in " ".join(capsys.readouterr().out.split())) == told


@pytest.mark.nightly
@pytest.mark.parametrize("option", ["--initial", "--beside"])
def test_a_training_tells_it_of_the_policies_that_it_takes(place, network, tmp_path, capsys, option):
    """The last of three runs, each started from the one before, on real days; only the first was trained on a model."""
    model = tmp_path / "model.safetensors"
    save_network(model, network, {"sources": sources("2030-01-01", "2019-01-01")}, {})
    first = trained_on(tmp_path / "first", place, model)
    second = trained_on(tmp_path / "second", place, "prices.parquet", initial=str(first / "checkpoint.pt"))
    third = trained_on(tmp_path / "third", place, "prices.parquet", initial=str(second))
    for start, told in ((third, True), (place / "run", False)):
        words = train_args(place, option, str(start), "--folder", str(tmp_path / f"run{told}"))
        assert cli.main(words) == 0
        assert (NOTE in " ".join(capsys.readouterr().out.split())) == told


@pytest.mark.parametrize(("market", "hint"), [("neural", True), ("judged", False)])
def test_weights_that_know_fewer_days_are_named(place, tmp_path, capsys, market, hint):
    options = {"symbols": ("AAPL", "MSFT"), "num_days": 400}
    known = vecenv.make("stock_trading", num_envs=1, market_options=options).scenario.tape
    tell_known_before(Console(), "prices.parquet", known, [trained_on(tmp_path / "run", place, market)])
    shown = " ".join(capsys.readouterr().out.split())
    assert f"paths of {market}, a model" in shown
    assert ("--market judged has learned from none after 2018-12-31" in shown) == hint


def test_a_model_that_is_gone_or_damaged_is_told_and_the_others_too(place, network, tape, tmp_path, capsys):
    kept, damaged = tmp_path / "kept.safetensors", tmp_path / "damaged.safetensors"
    save_network(kept, network, {"sources": sources("2030-01-01", "2019-01-01")}, {})
    damaged.write_bytes(b"no weights")
    models = (tmp_path / "gone.safetensors", damaged, kept)
    runs = [trained_on(tmp_path / model.stem, place, model) for model in models]
    tell_known_before(Console(), "prices.parquet", tape, runs)
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.count("whose days are unknown") == 2 and "gone.safetensors: no checkpoint" in shown
    assert f"paths of {kept}, a model" in shown and "--market judged" not in shown


def test_a_run_that_started_from_itself_is_read_once(place, tape, tmp_path):
    run = trained_on(tmp_path / "run", place, "prices.parquet", initial=str(tmp_path / "run"))
    tell_known_before(Console(), "prices.parquet", tape, [run, None])
