"""Policies of other runs: what a training starts from, what it is compared with, and what does not fit."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import vecenv
from tests.tasks.commands.small_runs import SHARES, SMALL, TILTS, learner_of, made_run, settings_on
from vecenv.learn.checkpoints import save_checkpoint
from vecenv.learn.cppo_objective import CPPOConfig
from vecenv.learn.dqn_objective import DQNConfig
from vecenv.learn.ppo import PPOConfig
from vecenv.learn.sac import SACConfig
from vecenv.tasks.commands.comparison import held_out_environment
from vecenv.tasks.commands.other_runs import (
    check_beside,
    check_beside_on,
    check_initial,
    initial_path,
    policies_beside,
    start_from_initial,
)
from vecenv.tasks.commands.run_folder import read_checkpoint

SYMBOLS = PPOConfig(**SMALL | {"policy": "symbol"})


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"ppo": PPOConfig(**SMALL | {"hidden": (16,)})}, "trained with hidden (8,), which cannot start a run"),
        ({"ppo": SYMBOLS}, "trained with policy flat, which cannot start a run with policy symbol"),
        ({"env": replace(TILTS, features=("macd",))}, "the checkpoint was trained on features rsi_30, not macd"),
        ({"env": replace(TILTS, action="weights")}, "the checkpoint was trained on actions 'tilt', not 'weights'"),
        ({"task": "portfolio"}, "trained for {'task': 'stock_trading'"),
        ({"algorithm": "sac", "sac": SACConfig(hidden=(8,))}, "head gaussian, which cannot start a run with head tanh"),
        (
            {"algorithm": "dqn", "dqn": DQNConfig(hidden=(8,))},
            "its actor gives distributions of actions, which cannot start a run whose actor gives values of choices",
        ),
    ],
)  # fmt: skip
def test_a_policy_that_cannot_start_a_run_is_named(place, changes, told):
    source = place / "tilts"
    with pytest.raises(ValueError, match=re.escape(f"{source / 'checkpoint.pt'}: ")) as error:
        check_initial(settings_on(place, initial=source, **changes))
    assert told in str(error.value)


def test_policies_that_fit_and_files_that_hold_none(place, tmp_path):
    check_initial(settings_on(place, initial=place / "tilts"))
    check_initial(settings_on(place, initial=place / "tilts", algorithm="cppo", cppo=CPPOConfig(**SMALL)))
    own = read_checkpoint(place / "tilts")
    model = {name: value for name, value in own.items() if name != "actor"}
    for state, told in (
        (model, "holds no policy; of a language model's run, the folder is its model"),
        (own | {"members": 2}, "holds the members of an ensemble in one batch; each is in a folder seed_K beside it"),
        ({"actor": []}, "not a checkpoint of vecenv"),
        ({"config": {}}, "not a checkpoint of vecenv"),
    ):
        save_checkpoint(state, tmp_path / "a.pt")
        for check, name, given in ((check_initial, "initial", tmp_path / "a.pt"), (check_beside, "beside", None)):
            settings = settings_on(place, **{name: given or (tmp_path / "a.pt",)})
            with pytest.raises(ValueError, match=re.escape(f"{tmp_path / 'a.pt'}: {told}")):
                check(settings)


def test_a_run_is_resumed_from_what_it_started_from(place, tmp_path):
    own, plain = settings_on(place, initial=Path("a")), place / "tilts"
    started = made_run(tmp_path / "run", own)
    check_initial(replace(own, resume=started))
    check_initial(settings_on(place, resume=plain))
    with pytest.raises(ValueError, match=re.escape(f"{started} is a run that started from a: --initial belongs to a")):
        check_initial(replace(own, resume=started, initial=Path("b")))
    with pytest.raises(ValueError, match=re.escape(f"{plain} is a run that started from nothing: --initial belongs")):
        check_initial(replace(own, resume=plain))


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(map(torch.equal, one, other))


def test_a_new_run_keeps_a_copy_of_its_start_and_the_next_seed_takes_that(place, tmp_path):
    first, second = tmp_path / "seed_4", tmp_path / "seed_5"
    _ = first.mkdir(), second.mkdir()
    before = read_checkpoint(place / "tilts")
    for folder, seed, given in ((first, 4, place / "tilts"), (second, 5, tmp_path / "moved away")):
        settings = settings_on(place, seed=seed, initial=given)
        learner = learner_of(settings)
        assert not same(learner.actor, before["actor"])
        start_from_initial(settings, learner, folder, first)
        kept = read_checkpoint(initial_path(folder))
        for name in ("actor", "critic", "moments"):
            assert same(kept[name], before[name]) and same(getattr(learner, name), before[name])
    # A resumed run needs its copy, and takes nothing from it.
    settings = settings_on(place, seed=4, initial=place / "tilts", resume=first)
    learner = learner_of(settings)
    start_from_initial(settings, learner, first, first)
    assert not same(learner.actor, before["actor"])
    initial_path(first).unlink()
    with pytest.raises(ValueError, match=re.escape(f"{first / 'initial.pt'}: the policy that the run started from")):
        start_from_initial(settings, learner, first, first)
    start_from_initial(settings_on(place), learner, first, first)
    assert not initial_path(first).exists()


def test_runs_beside_have_the_names_of_their_folders(place, tmp_path):
    settings = settings_on(place, beside=(place / "exact", place / "two"))
    assert policies_beside(settings) == {name: place / name / "checkpoint.pt" for name in ("exact", "two")}
    check_beside(settings)
    assert policies_beside(settings_on(place)) == {}
    for name in ("trained", "ensemble", "initial", "untrained", "best_rule", "buy_and_hold"):
        (tmp_path / name).symlink_to(place / "tilts")
        (tmp_path / name).unlink()
        (tmp_path / name).mkdir()
        (tmp_path / name / "checkpoint.pt").touch()
        with pytest.raises(ValueError, match=f"another agent of the comparison is called '{name}'; rename the folder"):
            policies_beside(settings_on(place, beside=(tmp_path / name,)))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"env": replace(TILTS, action="weights")}, "the checkpoint was trained on actions 'tilt', not 'weights'"),
        ({"env": replace(TILTS, features=("macd",))}, "the checkpoint was trained on features rsi_30, not macd"),
        ({"task": "portfolio"}, "trained for {'task': 'stock_trading'"),
    ],
)
def test_runs_of_other_inputs_cannot_stand_beside(place, changes, told):
    with pytest.raises(ValueError, match=re.escape(f"{place / 'exact' / 'checkpoint.pt'}: ")) as error:
        check_beside(settings_on(place, beside=(place / "exact",), **changes))
    assert told in str(error.value)


def test_a_flat_policy_of_other_symbols_cannot_play_the_test(place):
    settings = settings_on(place, beside=(place / "two",))
    check_beside(settings)
    tape = settings.tape(settings.env)
    env, _ = held_out_environment("stock_trading", settings.test(tape), settings.env, 2)
    check_beside_on(settings_on(place, beside=(place / "exact",)), tape, settings.env, env)
    with pytest.raises(ValueError, match=r"checkpoint.pt: the checkpoint was trained on 2 symbols, but 3 are chosen"):
        check_beside_on(settings, tape, settings.env, env)
    other = vecenv.make("stock_trading", 2, market=tape, config=SHARES, compile=False)
    with pytest.raises(ValueError, match="trained on observations and actions of other sizes"):
        check_beside_on(settings_on(place, beside=(place / "tilts",)), tape, settings.env, other)
