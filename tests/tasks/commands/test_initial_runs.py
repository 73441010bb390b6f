"""Training from the policy of another run by the command line: files, tables, resumption, and what is refused."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
import torch
import yaml

from tests.tasks.commands.small_runs import RUN_FILES, train_args
from vecenv.tasks.commands import cli
from vecenv.tasks.commands.comparison import config_of
from vecenv.tasks.commands.initial import check_initial
from vecenv.tasks.commands.run_folder import read_checkpoint
from vecenv.tasks.commands.train_settings import TrainSettings
from vecenv.tasks.commands.training_checks import check_subsets

# Whole runs of the command.
pytestmark = pytest.mark.nightly

TILTS = ("--env.action", "tilt", "--ppo.policy", "symbol", "--ppo.no-anneal", "--episodes", "4")
MORE = ("--ppo.total-frames", "1536")


@pytest.fixture(scope="module")
def source(market_place):
    """The folder of a run on two of the symbols."""
    folder = market_place / "source"
    words = (*TILTS, "--symbols", "S0", "S1", "--folder", str(folder))
    assert cli.main(train_args(market_place, *words)) == 0
    return folder


def same(first: dict, second: dict, name: str) -> bool:
    return all(torch.equal(one, other) for one, other in zip(first[name], second[name], strict=True))


def test_it_is_compared_with_what_it_started_from(market_place, source, tmp_path, capsys):
    folder = tmp_path / "run"
    words = (*TILTS, "--seed", "4", "--initial", str(source), "--folder", str(folder))
    assert cli.main(train_args(market_place, *words)) == 0
    assert {path.name for path in folder.iterdir()} == RUN_FILES | {"initial.pt", "policy.png"}
    initial, before = (read_checkpoint(path) for path in (folder / "initial.pt", source))
    for name in ("actor", "critic", "moments"):
        assert same(initial, before, name)
    for other in (folder / "untrained.pt", folder):
        assert not same(initial, read_checkpoint(other), "actor")
    document = json.loads((folder / "metrics.json").read_text())
    assert list(document["evaluation"]["agents"])[:3] == ["trained", "untrained", "initial"]
    assert list(document["generalisation"])[:3] == ["trained", "untrained", "initial"]
    assert document["settings"]["initial"] == str(source)
    assert yaml.safe_load((folder / "settings.yaml").read_text())["initial"] == str(source)
    # A resumption from another policy, or without the run's own copy, is refused.
    capsys.readouterr()
    assert cli.main(["train", "--resume", str(source), "--initial", str(folder)]) == cli.BAD_INPUT
    assert f"{source} is a run that started from nothing: --initial belongs to a new run" in capsys.readouterr().err
    assert cli.main(["train", "--resume", str(folder), "--initial", str(folder)]) == cli.BAD_INPUT
    assert f"{folder} is a run that started from {source}: --initial" in capsys.readouterr().err
    (folder / "initial.pt").unlink()
    assert cli.main(["train", "--resume", str(folder)]) == cli.BAD_INPUT
    assert "initial.pt: the policy that the run started from is missing" in capsys.readouterr().err


def test_a_resumed_run_is_the_uninterrupted_one_without_the_other_run(market_place, source, tmp_path):
    parted, whole = tmp_path / "parted", tmp_path / "whole"
    moved = shutil.copytree(source, tmp_path / "moved")
    words = (*TILTS, "--seed", "4", "--initial", str(moved))
    assert cli.main(train_args(market_place, *words, *MORE, "--folder", str(whole))) == 0
    assert cli.main(train_args(market_place, *words, "--folder", str(parted))) == 0
    shutil.rmtree(moved)
    kept = (parted / "initial.pt").read_bytes()
    assert cli.main(["train", "--resume", str(parted), *MORE]) == 0
    ended, uninterrupted = read_checkpoint(parted), read_checkpoint(whole)
    assert ended["update"] == uninterrupted["update"] == 3
    for name in ("actor", "critic", "moments"):
        assert same(ended, uninterrupted, name)
    assert (parted / "initial.pt").read_bytes() == kept
    resumed, other = (json.loads((folder / "metrics.json").read_text()) for folder in (parted, whole))
    assert resumed["evaluation"]["agents"] == other["evaluation"]["agents"]


def test_all_seeds_start_from_it_and_one_that_has_not_begun_does_not_need_the_other_run(market_place, source, tmp_path):
    folder, moved = tmp_path / "run", shutil.copytree(source, tmp_path / "moved")
    words = (*TILTS, "--seed", "4", "--seeds", "2", "--symbols-per-path", "2", "--subsets-per-path", "3")
    assert cli.main(train_args(market_place, *words, "--initial", str(moved), "--folder", str(folder))) == 0
    before, first, second = (read_checkpoint(path) for path in (source, folder / "seed_4", folder / "seed_5"))
    for seed in (4, 5):
        assert same(read_checkpoint(folder / f"seed_{seed}" / "initial.pt"), before, "actor")
    assert not same(first, second, "actor")
    # Each seed draws its own subsets.
    assert first["scenario"]["market"]["fingerprint"] != second["scenario"]["market"]["fingerprint"]
    agents = list(json.loads((folder / "metrics.json").read_text())["evaluation"]["agents"])
    assert agents[:5] == ["trained_4", "trained_5", "ensemble", "untrained", "initial"]
    shutil.rmtree(moved)
    shutil.rmtree(folder / "seed_5")
    assert cli.main(["train", "--resume", str(folder)]) == 0
    assert same(read_checkpoint(folder / "seed_5"), second, "actor")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--ppo.hidden", "16"), "trained with hidden (8,), which cannot start a run with hidden (16,)"),
        (("--ppo.policy", "flat"), "trained with policy symbol, which cannot start a run with policy flat"),
        (("--env.features", "macd"), "the checkpoint was trained on features rsi_30, not macd"),
        (("--env.action", "weights"), "the checkpoint was trained on actions 'tilt', not 'weights'"),
        (("--initial", "nowhere"), "nowhere: there is no checkpoint"),
    ],
)
def test_what_does_not_fit_is_refused_before_any_work(market_place, source, tmp_path, capsys, words, told):
    folder = tmp_path / "run"
    args = train_args(market_place, *TILTS, "--initial", str(source), *words, "--folder", str(folder))
    assert cli.main(args) == cli.BAD_INPUT
    captured = capsys.readouterr()
    assert told in captured.err and "Making the market" not in captured.err + captured.out
    assert not folder.exists()


def test_a_language_model_from_python_takes_neither(tmp_path):
    settings = TrainSettings(task="single_stock", env=config_of("single_stock"), algorithm="grpo", model="m")
    with pytest.raises(ValueError, match="a language model is its own start"):
        check_initial(replace(settings, initial=tmp_path))
    with pytest.raises(ValueError, match="a language model is trained on all symbols"):
        check_subsets(replace(settings, symbols_per_path=2))


def test_policies_of_another_task_and_language_models_are_refused(market_place, tmp_path, capsys):
    own = {"config": {}, "scenario": {"task": "x", "task_version": "1"}}
    for name, state, told in (
        ("task", own | {"actor": []}, "trained for {'task': 'x', 'task_version': '1'}, not for"),
        ("model", own, "holds no policy; of a language model's run, the folder is its model"),
    ):
        path = tmp_path / f"{name}.pt"
        torch.save(state, path)
        words = (*TILTS, "--initial", str(path), "--folder", str(tmp_path / "run"))
        assert cli.main(train_args(market_place, *words)) == cli.BAD_INPUT
        assert f"{path}: {told}" in capsys.readouterr().err
