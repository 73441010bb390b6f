"""A training beside the policies of other runs: names, figures, and what is refused before the training."""

from __future__ import annotations

import json
import shutil

import pytest

from tests.tasks.commands.small_runs import train_args
from vecenv.tasks.commands import cli

# Whole runs of the command.
pytestmark = pytest.mark.nightly

TILTS = ("--env.action", "tilt", "--episodes", "4", "--seed", "3")
PPO = (*TILTS, "--ppo.policy", "symbol", "--ppo.no-anneal")


@pytest.fixture(scope="module")
def exact(market_place):
    """The folder of a run of the exact gradient."""
    folder = market_place / "beside" / "exact"
    words = (*TILTS, "--algorithm", "exact", "--exact.policy", "symbol", "--exact.hidden", "8")
    words += ("--exact.total-frames", "1024", "--exact.num-steps", "8", "--folder", str(folder))
    assert cli.main(train_args(market_place, *words)) == 0
    return folder


def agents_in(folder):
    return json.loads((folder / "metrics.json").read_text())["evaluation"]["agents"]


def evaluated(target, *words):
    assert cli.main(["evaluate", *map(str, words), "--episodes", "4", "--seed", "3", "--json", str(target)]) == 0
    return json.loads(target.read_text())["agents"]


def test_the_exact_gradient_stands_beside_ppo(market_place, exact, tmp_path):
    folder = tmp_path / "run"
    assert cli.main(train_args(market_place, *PPO, "--beside", str(exact), "--folder", str(folder))) == 0
    agents, alone = agents_in(folder), agents_in(exact)
    assert list(agents)[:3] == ["trained", "untrained", "exact"]
    # The same account of whole shares, the same episodes.
    assert agents["exact"]["cumulative_return"] == alone["trained"]["cumulative_return"]
    assert agents["exact"]["cumulative_return"] != agents["trained"]["cumulative_return"]
    document = json.loads((folder / "metrics.json").read_text())
    assert list(document["generalisation"])[:3] == ["trained", "untrained", "exact"]
    assert document["settings"]["beside"] == [str(exact)]
    # A resumed run is compared with the same.
    assert cli.main(["train", "--resume", str(folder), "--ppo.total-frames", "1536"]) == 0
    assert agents_in(folder)["exact"]["cumulative_return"] == alone["trained"]["cumulative_return"]


def test_it_is_evaluated_under_the_rules_of_its_comparison(market_place, exact, tmp_path):
    agents = evaluated(tmp_path / "told.json", "--checkpoint", exact, "--agents", "hold")
    assert agents["trained"]["cumulative_return"] == agents_in(exact)["trained"]["cumulative_return"]


def test_policies_of_both_are_evaluated_without_an_ensemble(market_place, exact, tmp_path):
    folder = tmp_path / "run"
    assert cli.main(train_args(market_place, *PPO, "--folder", str(folder))) == 0
    agents = evaluated(tmp_path / "told.json", "--checkpoint", folder, exact, "--agents", "hold")
    assert list(agents) == ["run", "exact", "hold"]
    assert agents["exact"]["cumulative_return"] == agents_in(exact)["trained"]["cumulative_return"]
    assert agents["run"]["cumulative_return"] == agents_in(folder)["trained"]["cumulative_return"]


def test_policies_of_other_rules_are_not_evaluated_together(market_place, exact, tmp_path, capsys):
    folder = tmp_path / "run"
    words = (*PPO, "--env.tilt-gain", "3", "--folder", str(folder))
    assert cli.main(train_args(market_place, *words)) == 0
    capsys.readouterr()
    assert cli.main(["evaluate", "--checkpoint", str(folder), str(exact)]) == cli.BAD_INPUT
    assert "was trained under other rules than" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "words", "told"),
    [
        ("exact", ("--env.action", "weights"), "the checkpoint was trained on actions 'tilt', not 'weights'"),
        ("exact", ("--env.features", "macd"), "the checkpoint was trained on features rsi_30, not macd"),
        ("exact", ("--beside", "nowhere"), "nowhere: there is no checkpoint"),
        ("buy_and_hold", (), "another agent of the comparison is called 'buy_and_hold'"),
        ("untrained", (), "another agent of the comparison is called 'untrained'"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_the_training(
    market_place, exact, tmp_path, capsys, name, words, told
):
    place = shutil.copytree(exact, tmp_path / name)
    folder = tmp_path / "run"
    arguments = train_args(market_place, *PPO, "--beside", str(place), "--folder", str(folder), *words)
    assert cli.main(arguments) == cli.BAD_INPUT
    assert told in capsys.readouterr().err
    assert not (folder / "checkpoint.pt").exists()


def test_a_flat_policy_of_other_symbols_is_refused_before_the_training(market_place, tmp_path, capsys):
    source, folder = tmp_path / "two", tmp_path / "run"
    words = (*TILTS, "--ppo.policy", "flat", "--symbols", "S0", "S1", "--folder", str(source))
    assert cli.main(train_args(market_place, *words)) == 0
    capsys.readouterr()
    words = (*PPO, "--beside", str(source), "--folder", str(folder))
    assert cli.main(train_args(market_place, *words)) == cli.BAD_INPUT
    assert "checkpoint.pt: the checkpoint was trained on 2 symbols, but" in capsys.readouterr().err
    assert not (folder / "checkpoint.pt").exists()
