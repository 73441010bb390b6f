"""An evaluation tells if a market model that an agent was trained on has learned from days of the test."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml
from rich.console import Console

import vecenv
from vecenv.market.load import known_days
from vecenv.market.tape import MarketTape
from vecenv.tasks.commands import known_before
from vecenv.tasks.commands.known_before import tell_known_before
from vecenv.worldmodel.network.checkpoint import save_network
from vecenv.worldmodel.network.market_network import MarketNetwork, NetworkSettings
from vecenv.worldmodel.network.named_weights import JUDGED
from vecenv.worldmodel.network.transformer import TransformerSettings

TOLD = (
    "A policy was trained on paths of {}, a model that has learned from days of these symbols up to {}: until then "
    "this is no test on unseen days"
)


def test_the_last_day_of_each_symbol_over_all_markets(tmp_path):
    torch.manual_seed(0)
    trunk = TransformerSettings(layers=1, width=16, heads=2, hidden=32, window=8)
    network, model = (
        MarketNetwork(NetworkSettings(trunk=trunk, head=16, markets=("one", "two"))),
        tmp_path / "a.safetensors",
    )
    one = {"symbols": ["S0", "S9"], "validation_end": "2020-06-01"}
    save_network(
        model, network, {"sources": {"one": one, "two": {"symbols": ["S9"], "validation_end": "2021-03-01"}}}, {}
    )
    assert known_days(model) == {"S0": "2020-06-01", "S9": "2021-03-01"}
    save_network(model, network, {}, {})
    assert known_days(model) == known_days("synthetic") == known_days("prices.parquet") == {}


def test_shipped_and_judged_weights_tell_their_days():
    judged, shipped = known_days("judged"), known_days("neural")
    assert judged == known_days(JUDGED) and (judged["TCS"], judged["AAPL"]) == ("2022-12-31", "2018-12-31")
    assert shipped.keys() == judged.keys() and (shipped["TCS"], shipped["AAPL"]) == ("2024-12-31", "2022-12-30")


def trained_on(run: Path, market: object, **more: object) -> Path:
    """Return a folder that says on which market it was trained."""
    run.mkdir()
    (run / "settings.yaml").write_text(yaml.safe_dump({"market": str(market), **more}))
    return run


@pytest.fixture(scope="module")
def tape() -> MarketTape:
    """Days of S0 and S1."""
    options = {"symbols": ("S0", "S1"), "num_days": 400}
    return vecenv.make("stock_trading", num_envs=1, market_options=options).scenario.tape


@pytest.fixture
def told(tape, monkeypatch):
    """Return what is told of policies, where models know some days by symbol."""

    def lines(days: dict, policies, market="prices.parquet"):
        def known(name):
            if isinstance(found := days.get(name, {}), Exception):
                raise found
            return found

        monkeypatch.setattr(known_before, "known_days", known)
        console = Console(width=400, record=True, quiet=False)
        with console.capture() as capture:
            tell_known_before(console, market, tape, policies)
        return capture.get().splitlines()

    return lines


def test_only_days_of_the_tests_symbols_are_told(told, tape, tmp_path):
    """Those of S0 up to the first day of the test or the day before; S9 is not in the test, whose days may be drawn."""
    run, first, before, late = trained_on(tmp_path / "run", "m"), *(str(tape.dates[0] + off) for off in (0, -1, 900))
    assert told({"m": {"S0": first, "S9": before}}, [run]) == [TOLD.format("m", first)]
    assert told({"m": {"S0": before, "S9": late}}, [run]) == told({"m": {"S9": late}}, [run]) == []
    assert told({"m": {"S0": first}}, [run], market="synthetic") == told({}, [None]) == []
    assert told({"m": {"S0": first, "S1": late}}, [run]) == [TOLD.format("m", late)]


def test_weights_that_know_fewer_days_are_named(told, tape, tmp_path):
    run, judged = trained_on(tmp_path / "run", "neural"), trained_on(tmp_path / "judged", "judged")
    days = {"neural": {"S0": "2030-01-01"}, "judged": {"S0": "2018-12-31"}}
    hint = "; --market judged has learned from none after 2018-12-31"
    assert told(days, [run]) == [TOLD.format("neural", "2030-01-01") + hint]
    late = {"judged": {"S0": "2029-01-01"}}
    assert told(late, [judged]) == [TOLD.format("judged", "2029-01-01")]


def test_policies_that_a_policy_started_from_are_looked_at_too(told, tmp_path):
    """The last of three runs, each started from the one before; only the first was trained on a model."""
    first = trained_on(tmp_path / "first", "m")
    second = trained_on(tmp_path / "second", "prices.parquet", initial=str(first / "checkpoint.pt"))
    third = trained_on(tmp_path / "third", "prices.parquet", initial=str(second))
    assert told({"m": {"S0": "2030-01-01"}}, [None, third, third]) == [TOLD.format("m", "2030-01-01")]
    itself = trained_on(tmp_path / "itself", "m", initial=str(tmp_path / "itself"))
    assert told({}, [itself]) == []


def test_a_model_that_is_gone_or_damaged_is_told_and_the_others_too(told, tmp_path):
    runs = [trained_on(tmp_path / name, name) for name in ("c", "b", "a")]
    days = {"a": ValueError("a: damaged"), "b": OSError("b: gone"), "c": {"S0": "2030-01-01"}}
    unknown = "A policy was trained on paths of a model whose days are unknown: "
    assert told(days, runs) == [f"{unknown}a: damaged", f"{unknown}b: gone", TOLD.format("c", "2030-01-01")]
