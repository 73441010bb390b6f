"""`vecenv export`: a run's policy as a file, with what its inputs are, and the check of such a folder."""

import json
import shutil

import numpy as np
import pytest
import torch

import vecenv
from tests.tasks.commands.small_runs import bars
from vecenv.market.bars import CLOSE
from vecenv.tasks.commands import cli, exporting
from vecenv.tasks.stock_trading.scenario import StockTrading


@pytest.fixture(scope="module")
def export(place, tmp_path_factory):
    folder = tmp_path_factory.mktemp("export")
    given = ["export", "--checkpoint", str(place / "tilts"), "--to", "torch", "--observations", "200"]
    assert cli.main([*given, "--folder", str(folder)]) == 0
    return folder


def test_a_folder_tells_what_goes_in_and_what_comes_out(export, place):
    told = json.loads((export / "manifest.json").read_text())
    names = [column["name"] for column in told["input"]["columns"]]
    symbols = ["S0", "S1", "S2"]
    assert names == [
        "cash",
        *(f"{name} {symbol}" for name in ("close", "holdings", "rsi_30") for symbol in symbols),
    ]
    assert told["input"]["shape"] == ["batch", len(names)]
    assert told["output"]["low"] == [-1.0] * 4
    assert told["output"]["high"] == [1.0] * 4
    assert told["trained_on"]["symbols"] == told["recorded_on"]["symbols"] == symbols
    assert told["rules"]["features"] == ["rsi_30"]
    assert told["check"] == {"observations": 200, "differing": 0, "largest_difference": pytest.approx(0, abs=1e-5)}
    with np.load(export / "observations.npz") as recorded:
        assert recorded["observation"].shape == (200, len(names))
        assert recorded["action"].shape == (200, 4)


def test_an_export_is_checked_where_it_lies(export, tmp_path, capsys):
    folder = tmp_path / "moved"
    shutil.copytree(export, folder)
    assert cli.main(["export", "--check", str(folder)]) == 0
    assert "200 recorded observations" in capsys.readouterr().out
    with np.load(folder / "observations.npz") as recorded:
        seen, action = recorded["observation"], recorded["action"].copy()
    action[7, 1] += 0.01
    np.savez(folder / "observations.npz", observation=seen, action=action)
    assert cli.main(["export", "--check", str(folder)]) == 2
    assert "decides otherwise than the policy on 1 of 200" in capsys.readouterr().err
    (folder / "policy.pt2").rename(folder / "elsewhere")
    assert cli.main(["export", "--check", str(folder)]) == 2
    assert "not the folder of an export" in capsys.readouterr().err
    (folder / "elsewhere").rename(folder / "policy.pt2")
    (folder / "policy.pt2").write_bytes((folder / "policy.pt2").read_bytes()[:-1])
    assert cli.main(["export", "--check", str(folder)]) == 2
    assert "another file than the one" in capsys.readouterr().err


def test_choices_of_orders_are_exported_although_agents_are_compared_by_lists_of_them(tmp_path):
    market = ["--num-envs", "4", "--num-paths", "2", "--num-days", "320", "--episodes", "4", "--no-compile"]
    learner = ["--learner.num-steps", "8", "--learner.total-frames", "32", "--learner.minibatches", "2"]
    rules = ["--task", "single_stock", "--env.max-orders", "2", "--folder", str(tmp_path)]
    assert cli.main(["train", *rules, "--market", "synthetic", *market, *learner]) == 0
    assert cli.main(["export", "--checkpoint", str(tmp_path), "--to", "torch", "--observations", "20"]) == 0
    told = json.loads((tmp_path / "export-torch" / "manifest.json").read_text())
    assert told["output"]["shape"] == ["batch", 2, 2]
    assert told["check"]["differing"] == 0


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([], "either --checkpoint RUN is exported"),
        (["--checkpoint", "{}/none"], "there is no checkpoint"),
        (["--check", "{}"], "not the folder of an export"),
        (["--checkpoint", "{}/tilts", "--check", "{}"], "either --checkpoint RUN is exported"),
    ],
)
def test_what_is_no_policy_and_no_export_is_refused(given, told, place, capsys):
    assert cli.main(["export", *(part.format(place) for part in given)]) == 2
    assert told in capsys.readouterr().err


def test_what_is_not_installed_is_named_before_any_work(place, monkeypatch, capsys):
    monkeypatch.setattr(exporting, "find_spec", lambda name: None if name == "onnxscript" else name)
    assert cli.main(["export", "--checkpoint", str(place / "tilts")]) != 0
    assert "needs onnxscript: pip install 'vecenv[onnx]'" in capsys.readouterr().err
    assert not (place / "tilts" / "export-onnx").exists()


@pytest.mark.parametrize("scaled", [True, False])
def test_columns_are_in_the_units_that_they_name(scaled, tmp_path):
    bars(3, 80).to_parquet(tmp_path / "market.parquet")
    own = {"cash_scale": 1e-6, "price_scale": 0.01, "holdings_scale": 0.001, "feature_scale": 0.01}
    rules = {"features": ("rsi_14", "close_30_sma"), "episode_length": 10, "initial_holdings": 7.0}
    options = {"market": str(tmp_path / "market.parquet"), "compile": False, **rules, **(own if scaled else {})}
    env = vecenv.make("stock_trading", 2, **options)
    scenario, (row, _) = env.scenario, env.observations()
    assert isinstance(scenario, StockTrading)
    tape, day = scenario.tape, int(env.state.day[0])
    close = tape.ohlcv[0, day, 1, CLOSE].item()
    value, first = env.info()["start_value"][0].item(), tape.ohlcv[0, 0, 1, CLOSE].item()
    rsi, mean = tape.features[0, day, 1].tolist()
    shown = {name: (unit, number) for (name, unit), number in zip(scenario.columns(), row.tolist(), strict=True)}
    if scaled:
        wanted = {
            "close S1": ("currency x 0.01", close * 0.01),
            "holdings S1": ("shares x 0.001", 7 * 0.001),
            "rsi_14 S1": ("value x 0.01", rsi * 0.01),
            "close_30_sma S1": ("value x 0.01", mean * 0.01),
        }
    else:
        wanted = {
            "close S1": ("1 + log-return since the first close", 1 + np.log(close / first)),
            "holdings S1": ("worth x 3 / value at the start of the episode", 7 * close * 3 / value),
            "rsi_14 S1": ("value x 0.015625", rsi / 64),
            "close_30_sma S1": ("value / close", mean / close),
        }
    assert {name: shown[name][0] for name in wanted} == {name: unit for name, (unit, _) in wanted.items()}
    assert [shown[name][1] for name in wanted] == pytest.approx([number for _, number in wanted.values()], rel=1e-5)


def shown_of(env):
    """What a row sees, by the names of the columns, each of which is one: unit and number."""
    columns, row = env.scenario.columns(), env.observations()[0].tolist()
    shown = {name: (unit, number) for (name, unit), number in zip(columns, row, strict=True)}
    assert len(shown) == len(columns)
    return shown


def test_columns_of_a_tier_are_where_they_are_named():
    env = vecenv.make("multi_stock_3", 2, market="synthetic", compile=False, action="weights")
    symbols = env.scenario.tape.symbols
    env.advance(torch.tensor([[0.0, 0.3, 0.0]]).expand(2, 3))
    shown, path, day = shown_of(env), int(env.state.path[0]), int(env.state.day[0])
    held = [shown[f"weight {symbol}"][1] != 0 for symbol in symbols]
    days = [shown[f"days_held {symbol}"][1] != 0 for symbol in symbols]
    assert held == days == [False, True, False]
    for place, symbol in enumerate(symbols):
        close = env.scenario.tape.ohlcv[path, day, place, CLOSE].item()
        unit, number = shown[f"close {symbol}"]
        assert unit.startswith("currency / 1024 x ")
        factor = float(unit.rpartition(" ")[2])
        assert number == pytest.approx(factor * close / 1024, rel=1e-5)


def test_columns_of_scores_are_in_the_units_that_they_name():
    env = vecenv.make("signals", 2, market="news", compile=False, observed=("sentiment",))
    shown, state = shown_of(env), env.state
    for place, symbol in enumerate(env.scenario.tape.symbols):
        score = env.scenario.panels.scores[int(state.path[0]), int(state.day[0]), place, 0].item()
        assert shown[f"sentiment {symbol}"] == ("score / 5", pytest.approx(score / 5))
        unit, known = shown[f"sentiment_known {symbol}"]
        assert unit == "0 or 1"
        assert known in (0.0, 1.0)
