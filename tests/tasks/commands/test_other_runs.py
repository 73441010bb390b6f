"""Runs of seeds and other runs: folders, names, how they go on, what a training starts from and is compared with."""

from __future__ import annotations

import re
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from rich.console import Console

import vecenv
from tests.tasks.commands.small_runs import SHARES, SMALL, TILTS, learner_of, made_run, settings_on
from vecenv.learn.checkpoints import save_checkpoint
from vecenv.learn.cppo_objective import CPPOConfig
from vecenv.learn.dqn_objective import DQNConfig
from vecenv.learn.metrics import Interval
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
from vecenv.tasks.commands.seeds import (
    SeedRun,
    check_folder,
    keep_interrupted,
    over_seeds,
    over_seeds_line,
    policies_by_folder,
    policy_files,
    runs_of_seeds,
    trainings,
    write_seed_settings,
)

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
        checkpoint_in(tmp_path / name)
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
    check_beside_on(settings_on(place, beside=(place / "exact",)), env, tape, settings.env)
    with pytest.raises(ValueError, match=r"checkpoint.pt: the checkpoint was trained on 2 symbols, but 3 are chosen"):
        check_beside_on(settings, env, tape, settings.env)
    other = vecenv.make("stock_trading", 2, market=tape, config=SHARES, compile=False)
    with pytest.raises(ValueError, match="trained on observations and actions of other sizes"):
        check_beside_on(settings_on(place, beside=(place / "tilts",)), other)


def checkpoint_in(folder: Path, name: str = "checkpoint.pt") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).touch()
    return folder if name == "checkpoint.pt" else folder / name


def test_a_run_for_each_seed_in_a_folder_of_its_own(tmp_path):
    for given in ({"seeds": 2}, {"ensemble": 2}):
        settings = settings_on(tmp_path, seed=4, **given)
        single = replace(settings, seeds=1, ensemble=None)
        runs = [SeedRun(replace(single, seed=seed), tmp_path / f"seed_{seed}", f"trained_{seed}") for seed in (4, 5)]
        assert runs_of_seeds(settings, tmp_path) == runs
        together = [SeedRun(settings, tmp_path, "ensemble")]
        assert trainings(settings, tmp_path) == (runs if "seeds" in given else together)
    assert runs_of_seeds(single, tmp_path) == trainings(single, tmp_path) == [SeedRun(single, tmp_path, "trained")]
    # Only a seed that has begun is resumed.
    checkpoint_in(tmp_path / "seed_5")
    resumed = runs_of_seeds(settings_on(tmp_path, seed=4, seeds=2, resume=tmp_path), tmp_path)
    assert [run.settings.resume for run in resumed] == [None, tmp_path / "seed_5"]
    assert [run.settings.resume for run in runs_of_seeds(settings_on(tmp_path, seed=4, seeds=2), tmp_path)] == [
        None
    ] * 2


def test_policies_in_a_folder_are_those_of_its_seeds_in_their_order(tmp_path):
    assert policy_files(tmp_path) == {"trained": tmp_path / "checkpoint.pt"}
    assert policy_files(tmp_path / "a.pt") == {"trained": tmp_path / "a.pt"}
    for name in ("seed_10", "seed_9", "seed_x", "seed_"):
        checkpoint_in(tmp_path / name)
    (tmp_path / "seed_11").mkdir()
    found = {f"trained_{seed}": tmp_path / f"seed_{seed}" / "checkpoint.pt" for seed in (9, 10)}
    assert policy_files(tmp_path) == found and list(policy_files(tmp_path)) == list(found)


def test_policies_are_named_by_as_much_of_their_folders_as_tells_them_apart(tmp_path):
    one, two = checkpoint_in(tmp_path / "a" / "seed_0"), checkpoint_in(tmp_path / "b" / "seed_0")
    other, before = checkpoint_in(tmp_path / "exact"), checkpoint_in(tmp_path / "exact", "untrained.pt")
    assert list(policies_by_folder([one, other], ())) == ["seed_0", "exact"]
    assert list(policies_by_folder([one, two], ())) == ["a/seed_0", "b/seed_0"]
    assert list(policies_by_folder([other, before], ())) == ["exact", "untrained"]
    assert policies_by_folder([tmp_path / "a", other], ()) == {
        "seed_0": one / "checkpoint.pt",
        "exact": other / "checkpoint.pt",
    }
    assert policies_by_folder([], ()) == {}
    with pytest.raises(ValueError, match=r"checkpoint\.pt is given twice"):
        policies_by_folder([one, tmp_path / "a"], ())
    with pytest.raises(ValueError, match=r"exact.checkpoint\.pt: another agent of the comparison is called 'exact'"):
        policies_by_folder([one, other], {"exact"})


def test_folders_that_hold_runs_and_those_that_can_go_on(place, tmp_path):
    new, seeds = settings_on(place), settings_on(place, seeds=2)
    several = tmp_path / "several"
    made_run(several / "seed_0", new)
    check_folder(new, tmp_path / "new")
    for folder in (several, place / "tilts"):
        for settings in (new, seeds):
            with pytest.raises(ValueError, match=re.escape(f"{folder} already holds a run; resume it with --resume")):
                check_folder(settings, folder)
    check_folder(replace(new, resume=place / "tilts"), place / "tilts")
    check_folder(replace(seeds, resume=several), several)
    with pytest.raises(ValueError, match="tilts: there is no checkpoint of one of the 2 seeds"):
        check_folder(replace(seeds, resume=place / "tilts"), place / "tilts")
    with pytest.raises(ValueError, match=r"several/checkpoint\.pt: there is no checkpoint"):
        check_folder(replace(new, resume=several), several)
    with pytest.raises(ValueError, match=r"several/checkpoint\.pt: there is no checkpoint"):
        check_folder(replace(new, ensemble=2, resume=several), several)


def test_damaged_files_of_a_run_are_named(place, tmp_path):
    folder = made_run(tmp_path / "seed_1", settings_on(place))
    settings = settings_on(place, seeds=2, resume=tmp_path)
    log, checkpoint = folder / "metrics.csv", folder / "checkpoint.pt"
    log.write_text("update,frames\n1,512\n2,x1024\n")
    with pytest.raises(ValueError, match=re.escape(f"{log}, line 3: 'x1024' is not a number")):
        check_folder(settings, tmp_path)
    log.write_text("update,frames\n1,512\n2,10")
    check_folder(settings, tmp_path)
    whole = checkpoint.read_bytes()
    for damaged in (whole[:-900], b"not a checkpoint"):
        checkpoint.write_bytes(damaged)
        with pytest.raises(ValueError, match=re.escape(f"{checkpoint}: not a checkpoint, or a damaged one")):
            check_folder(settings, tmp_path)


def test_an_interruption_says_how_to_go_on_if_there_is_a_checkpoint(place, tmp_path):
    folder, out = tmp_path / "a run", StringIO()
    settings, console = settings_on(place, seed=4, seeds=2, preset="a"), Console(file=out, width=300)
    first, second = runs_of_seeds(settings, folder)
    _ = folder.mkdir(), first.folder.mkdir()
    keep_interrupted(console, first, settings, folder)
    assert out.getvalue() == "" and not list(first.folder.iterdir())
    checkpoint_in(first.folder)
    keep_interrupted(console, first, settings, folder)
    assert out.getvalue() == f"Interrupted. Resume with: vecenv train --resume '{folder}'\n"
    written = [yaml.safe_load((path / "settings.yaml").read_text()) for path in (folder, first.folder)]
    assert [(one["seed"], one["seeds"]) for one in written] == [(4, 2), (4, 1)] and "preset" not in written[0]
    # A later seed without a checkpoint leaves the run to be resumed too.
    keep_interrupted(console, second, settings, folder)
    assert out.getvalue().count("Interrupted") == 2 and not second.folder.exists()
    write_seed_settings(SeedRun(replace(settings, seeds=1), folder, "trained"), settings, folder)
    assert yaml.safe_load((folder / "settings.yaml").read_text())["seeds"] == 2


def intervals(**means: float) -> dict[str, Interval]:
    return {name: Interval(mean, mean - 1, mean + 1) for name, mean in means.items()}


def test_what_seeds_reach_together_is_the_mean_and_the_range_of_their_means(place, tmp_path):
    runs = runs_of_seeds(settings_on(place, seed=4, seeds=3), tmp_path)
    means = intervals(trained_4=0.5, trained_5=0.25, trained_6=0.75, ensemble=0.625, hold=0.0)
    evaluation = SimpleNamespace(
        grades={name: {"calibrated": mean, "seed": Interval(9.0, 9.0, 9.0)} for name, mean in means.items()},
        excess_log_returns={},
    )
    spread = {"by_seed": {"4": 0.5, "5": 0.25, "6": 0.75}, "mean": 0.5, "lowest": 0.25, "highest": 0.75}
    told = over_seeds(evaluation, runs)
    assert told == {"grade": spread | {"ensemble": 0.625}}
    line = "Over 3 seeds: grade 0.500 on average, from 0.250 to 0.750; their ensemble 0.625"
    assert over_seeds_line(told) == line
    assert over_seeds_line(told | {"disagreement": 0.125}) == f"{line}, whose policies differ at 12.5% of its steps"
    evaluation.excess_log_returns = intervals(trained_4=0.01, trained_5=-0.02, trained_6=0.04)
    told = over_seeds(evaluation, runs)
    assert list(told) == ["grade", "excess_log_return"] and "ensemble" not in told["excess_log_return"]
    assert over_seeds_line(told) == "Over 3 seeds: excess 1.00% on average, from -2.00% to 4.00%"
