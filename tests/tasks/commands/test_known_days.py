"""An evaluation tells if a market model that the agent was trained on has learned from days of the test."""

from __future__ import annotations

import pytest
import torch

from vecenv.market.load import known_days
from vecenv.system.preset_files import read_values
from vecenv.tasks.commands import cli
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


@pytest.mark.parametrize(
    ("first", "second", "told"),
    [("2030-01-01", "2019-01-01", True), ("2019-01-01", "2030-01-01", False), ("2020-02-03", "2019-01-01", False)],
)
def test_only_days_of_the_tests_symbols_are_told(place, network, tmp_path, capsys, first, second, told):
    """The market has S0 to S2: days of S9 alone do not count, nor those before the test."""
    model, run = tmp_path / "model.safetensors", tmp_path / "run"
    save_network(model, network, {"sources": sources(first, second)}, {})
    run.mkdir()
    (run / "checkpoint.pt").write_bytes((place / "run" / "checkpoint.pt").read_bytes())
    settings = (place / "run" / "settings.yaml").read_text()
    trained = read_values(place / "run" / "settings.yaml")["market"]
    (run / "settings.yaml").write_text(settings.replace(f"market: {trained}", f"market: {model}"))
    assert str(read_values(run / "settings.yaml")["market"]) == str(model)
    words = ("evaluate", "--checkpoint", str(run), "--market", str(place / "market.parquet"), "--episodes", "8")
    assert cli.main([*words]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert (NOTE in shown) == told and (not told or (f"{model}, a model" in shown and first in shown))
