"""Runs of seeds and other runs: folders, names, how they go on, what a training starts from, and what it leaves."""

import math
import re
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
import yaml
from rich.console import Console

import vecenv
from tests.tasks.commands.small_runs import SHARES, SMALL, TILTS, changed, learner_of, made_run, parts_of, settings_on
from vecenv.learn import cppo, dqn, members, sac, validation
from vecenv.learn.a2c import A2CConfig
from vecenv.learn.checkpoints import save_checkpoint
from vecenv.learn.evaluation import evaluate
from vecenv.learn.intervals import Interval
from vecenv.learn.ppo import PPOConfig
from vecenv.learn.runs import MetricsLog
from vecenv.tasks.experiment import other_runs, report, seeds, trainers
from vecenv.tasks.experiment.checkpoints import read_checkpoint
from vecenv.tasks.experiment.comparison import trained_agents
from vecenv.tasks.experiment.experiment import tell_batch
from vecenv.tasks.experiment.other_runs import check_beside, check_initial, start_from_initial
from vecenv.tasks.experiment.planning import check_training
from vecenv.tasks.experiment.seeds import SeedRun, check_folder, policies_by_folder, policy_files, runs_of_seeds

MACD, WEIGHTS = replace(TILTS, features=("macd",)), replace(TILTS, action="weights")
HIDDEN, SYMBOLS = PPOConfig(**SMALL | {"hidden": (16,)}), PPOConfig(**SMALL | {"policy": "symbol"})
SAC = {"algorithm": "sac", "learner": sac.SACConfig(hidden=(8,))}
DQN = {"algorithm": "dqn", "learner": dqn.DQNConfig(hidden=(8,))}


def test_what_a_run_starts_from_and_what_cannot_stand_beside_it(place, tmp_path):
    for given, changes, told in (
        ("initial", {"learner": HIDDEN}, "trained with hidden (8,), which cannot start a run"),
        ("initial", {"learner": SYMBOLS}, "trained with policy flat, which cannot start a run with policy symbol"),
        ("initial", {"env": MACD}, "the checkpoint was trained on features rsi_30, not macd"),
        ("initial", {"task": "portfolio"}, "trained for {'task': 'stock_trading'"),
        ("initial", SAC, "head gaussian, which cannot start a run with head tanh"),
        ("initial", DQN, "of actions, which cannot start a run whose actor gives values of choices"),
        ("beside", {"env": WEIGHTS}, "the checkpoint was trained on actions 'tilt', not 'weights'"),
        ("beside", {"task": "portfolio"}, "trained for {'task': 'stock_trading'"),
    ):
        source = place / ("tilts" if given == "initial" else "exact")
        settings = settings_on(place, **{given: source if given == "initial" else (source,)}, **changes)
        with pytest.raises(ValueError, match=re.escape(f"{source / 'checkpoint.pt'}: ")) as error:
            getattr(other_runs, f"check_{given}")(settings, settings.env)
        assert told in str(error.value)
    for given in ({}, {"algorithm": "cppo", "learner": cppo.CPPOConfig(**SMALL)}):
        check_initial(settings_on(place, initial=place / "tilts", **given), TILTS)
    own, file = read_checkpoint(place / "tilts"), tmp_path / "a.pt"
    model = {name: value for name, value in own.items() if name != "actor"}
    for state, told in (
        (model, "holds no policy; of a language model's run, the folder is its model"),
        (own | {"members": 2}, "holds the members of an ensemble in one batch; each is in a folder seed_K beside it"),
        ({"actor": []}, "not a checkpoint of vecenv"),
        ({"config": {}}, "not a checkpoint of vecenv"),
    ):
        save_checkpoint(state, file)
        for check, given in ((check_initial, {"initial": file}), (check_beside, {"beside": (file,)})):
            with pytest.raises(ValueError, match=re.escape(f"{file}: {told}")):
                check(settings_on(place, **given), TILTS)
    # A run is resumed from what it started from.
    own, plain = settings_on(place, initial=Path("a"), validation_fraction=0.2), place / "tilts"
    rounded = replace(own.learner, precision="bfloat16")
    started = made_run(tmp_path / "run", own)
    for folder, given, told in (
        (started, changed(own, initial=Path("b")), "initial (a, not b)"),
        (started, changed(own, validation_episodes=3), "validation_episodes (64, not 3)"),
        (plain, own, "initial (None, not a)"),
        (plain, settings_on(place, market="synthetic"), f"market ({settings_on(place).source.market}, not synthetic)"),
        (plain, settings_on(place, validation_fraction=0.2), "validation_fraction (0.0, not 0.2)"),
        (plain, settings_on(place, seed=1), "seed (0, not 1)"),
        (plain, settings_on(place, learner=rounded), "learner.precision (float32, not bfloat16)"),
        (plain, settings_on(place, test_fraction=0.3), "test_fraction (0.2, not 0.3)"),
        (plain, settings_on(place, env=replace(TILTS, episode_length=13)), "env.episode_length (12, not 13)"),
    ):
        with pytest.raises(
            ValueError, match=re.escape(f"{folder} is a run with other {told}, and goes on as it began")
        ):
            check_training(replace(given, resume=folder))
    # How long it is, what it is compared with, where it runs, and where its files lie.
    longer = replace(settings_on(place).learner, total_frames=512, checkpoint_every=3)
    moved = settings_on(tmp_path, resume=plain, episodes=8, beside=(place / "exact",), learner=longer, seeds=2)
    check_training(moved)
    check_training(changed(own, resume=started, patience=3))


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(map(torch.equal, one, other))


def test_a_new_run_keeps_a_copy_of_its_start_and_the_next_seed_takes_that(place, tmp_path):
    first, second = tmp_path / "seed_4", tmp_path / "seed_5"
    before = read_checkpoint(place / "tilts")
    for folder, seed, given in ((first, 4, place / "tilts"), (second, 5, tmp_path / "moved away")):
        folder.mkdir()
        settings = settings_on(place, seed=seed, initial=given)
        learner = learner_of(settings)
        assert not same(learner.actor, before["actor"])
        start_from_initial(settings, learner, folder, first)
        kept = read_checkpoint(other_runs.initial_path(folder))
        for name in ("actor", "critic", "moments"):
            assert same(kept[name], before[name]) and same(getattr(learner, name), before[name])
    # A resumed run needs its copy, and takes nothing from it.
    settings = settings_on(place, seed=4, initial=place / "tilts", resume=first)
    learner = learner_of(settings)
    start_from_initial(settings, learner, first, first)
    assert not same(learner.actor, before["actor"])
    (first / "initial.pt").unlink()
    with pytest.raises(ValueError, match=re.escape(f"{first / 'initial.pt'}: the policy that the run started from")):
        start_from_initial(settings, learner, first, first)
    start_from_initial(settings_on(place), learner, first, first)
    assert not (first / "initial.pt").exists()


def checkpoint_in(folder: Path, name: str = "checkpoint.pt") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).touch()
    return folder if name == "checkpoint.pt" else folder / name


def test_other_runs_beside_this_one(place, tmp_path):
    settings = settings_on(place, beside=(place / "exact", place / "two"))
    expected = {name: place / name / "checkpoint.pt" for name in ("exact", "two")}
    assert other_runs.policies_beside(settings) == expected and other_runs.policies_beside(settings_on(place)) == {}
    check_beside(settings, TILTS)
    for name in ("trained", "ensemble", "initial", "untrained", "best_rule", "buy_and_hold"):
        beside = (checkpoint_in(tmp_path / name),)
        with pytest.raises(ValueError, match=f"another agent of the comparison is called '{name}'; rename the folder"):
            other_runs.policies_beside(settings_on(place, beside=beside))
    # A flat policy of other symbols cannot play the test.
    settings = settings_on(place, beside=(place / "two",))
    check_beside(settings, TILTS)
    (trainer, splits), beside = parts_of(settings), settings_on(place, beside=(place / "exact",))
    env, _ = splits.episodes("test", 2, TILTS)
    parts_of(beside)[0].check_shown(env, splits)
    with pytest.raises(ValueError, match=r"checkpoint.pt: the checkpoint was trained on 2 symbols, but 3 are chosen"):
        trainer.check_shown(env, splits)
    other = vecenv.make("stock_trading", 2, market=splits.tape, config=SHARES, compile=False)
    with pytest.raises(ValueError, match="trained on observations and actions of other sizes"):
        parts_of(settings_on(place, beside=(place / "tilts",)))[0].check_shown(other, splits)


def test_folders_of_seeds_and_the_names_of_their_policies(tmp_path):
    assert policy_files(tmp_path) == {"trained": tmp_path / "checkpoint.pt"}
    assert policy_files(tmp_path / "a.pt") == {"trained": tmp_path / "a.pt"}
    for given in ({"seeds": 2}, {"ensemble": 2}):
        settings = settings_on(tmp_path, seed=4, **given)
        single = changed(settings, seeds=1, ensemble=None)
        runs = [SeedRun(replace(single, seed=seed), tmp_path / f"seed_{seed}", f"trained_{seed}") for seed in (4, 5)]
        assert runs_of_seeds(settings, tmp_path) == runs
        together = [SeedRun(settings, tmp_path, "ensemble")]
        assert seeds.trainings(settings, tmp_path) == (runs if "seeds" in given else together)
    alone = [SeedRun(single, tmp_path, "trained")]
    assert runs_of_seeds(single, tmp_path) == seeds.trainings(single, tmp_path) == alone
    # Only a seed that has begun is resumed.
    checkpoint_in(tmp_path / "seed_5")
    for resume, expected in ((tmp_path, [None, tmp_path / "seed_5"]), (None, [None, None])):
        runs = runs_of_seeds(settings_on(tmp_path, seed=4, seeds=2, resume=resume), tmp_path)
        assert [run.settings.resume for run in runs] == expected
    for name in ("seed_10", "seed_9", "seed_x", "seed_"):
        checkpoint_in(tmp_path / name)
    (tmp_path / "seed_11").mkdir()
    found = {f"trained_{seed}": tmp_path / f"seed_{seed}" / "checkpoint.pt" for seed in (5, 9, 10)}
    assert policy_files(tmp_path) == found and list(policy_files(tmp_path)) == list(found)
    # As much of their folders as tells them apart.
    one, two = checkpoint_in(tmp_path / "a" / "seed_0"), checkpoint_in(tmp_path / "b" / "seed_0")
    other, before = checkpoint_in(tmp_path / "exact"), checkpoint_in(tmp_path / "exact", "untrained.pt")
    assert list(policies_by_folder([one, two], ())) == ["a/seed_0", "b/seed_0"]
    assert list(policies_by_folder([other, before], ())) == ["exact", "untrained"]
    both = {"seed_0": one / "checkpoint.pt", "exact": other / "checkpoint.pt"}
    assert policies_by_folder([tmp_path / "a", other], ()) == both and policies_by_folder([], ()) == {}
    with pytest.raises(ValueError, match=r"checkpoint\.pt is given twice"):
        policies_by_folder([one, tmp_path / "a"], ())
    with pytest.raises(ValueError, match=r"exact.checkpoint\.pt: another agent of the comparison is called 'exact'"):
        policies_by_folder([one, other], {"exact"})


def test_folders_that_hold_runs_and_those_that_can_go_on(place, tmp_path):
    new, two, several = settings_on(place), settings_on(place, seeds=2), tmp_path / "several"
    folder = made_run(several / "seed_1", new)
    check_folder(new, tmp_path / "new")
    for held in (several, place / "tilts"):
        for settings in (new, two):
            with pytest.raises(ValueError, match=re.escape(f"{held} already holds a run; resume it with --resume")):
                check_folder(settings, held)
    check_folder(replace(new, resume=place / "tilts"), place / "tilts")
    with pytest.raises(ValueError, match="tilts: there is no checkpoint of one of the 2 seeds"):
        check_folder(replace(two, resume=place / "tilts"), place / "tilts")
    for settings in (new, changed(new, ensemble=2)):
        with pytest.raises(ValueError, match=r"several/checkpoint\.pt: there is no checkpoint"):
            check_folder(changed(settings, resume=several), several)
    # Damaged files are named.
    settings, log, checkpoint = replace(two, resume=several), folder / "metrics.csv", folder / "checkpoint.pt"
    check_folder(settings, several)
    log.write_text("update,frames\n1,512\n2,x1024\n")
    with pytest.raises(ValueError, match=re.escape(f"{log}, line 3: 'x1024' is not a number")):
        check_folder(settings, several)
    log.write_text("update,frames\n1,512\n2,10")
    check_folder(settings, several)
    for damaged in (checkpoint.read_bytes()[:-900], b"not a checkpoint"):
        checkpoint.write_bytes(damaged)
        with pytest.raises(ValueError, match=re.escape(f"{checkpoint}: not a checkpoint, or a damaged one")):
            check_folder(settings, several)


def test_an_interruption_says_how_to_go_on_if_there_is_a_checkpoint(place, tmp_path):
    folder, out = tmp_path / "a run", StringIO()
    settings, console = settings_on(place, seed=4, seeds=2, preset="a"), Console(file=out, width=300)
    first, second = runs_of_seeds(settings, folder)
    first.folder.mkdir(parents=True)
    seeds.keep_interrupted(console, first, settings, folder, "vecenv go on")
    assert out.getvalue() == "" and not list(first.folder.iterdir())
    checkpoint_in(first.folder)
    seeds.keep_interrupted(console, first, settings, folder, "vecenv go on")
    assert out.getvalue() == "Interrupted. Resume with: vecenv go on\n"
    written = [yaml.safe_load((path / "settings.yaml").read_text()) for path in (folder, first.folder)]
    assert [(one["seed"], one["seeds"]) for one in written] == [(4, 2), (4, 1)] and "preset" not in written[0]
    # A later seed without a checkpoint leaves the run to be resumed too.
    seeds.keep_interrupted(console, second, settings, folder, "vecenv go on")
    assert out.getvalue().count("Interrupted") == 2 and not second.folder.exists()
    seeds.write_seed_settings(SeedRun(changed(settings, seeds=1), folder, "trained"), settings, folder)
    assert yaml.safe_load((folder / "settings.yaml").read_text())["seeds"] == 2


def evaluation(grades: dict[str, float], excess: dict[str, float]) -> SimpleNamespace:
    """Means of grades and of excess returns, half of one above their lower bounds."""

    def held(means):
        return {name: Interval(mean, mean - 0.5, math.nan) for name, mean in means.items()}

    told = {name: {"calibrated": grade, "seed": Interval(9.0, 9.0, 9.0)} for name, grade in held(grades).items()}
    return SimpleNamespace(grades=told, measures={"excess_log_return": held(excess)})


def test_what_seeds_reach_together_and_policies_on_training_days_beside_the_test(place, tmp_path):
    runs = runs_of_seeds(settings_on(place, seed=4, seeds=3), tmp_path)
    means = {"trained_4": 0.5, "trained_5": 0.25, "trained_6": 0.75, "ensemble": 0.625, "hold": 0.0}
    spread = {"by_seed": {"4": 0.5, "5": 0.25, "6": 0.75}, "mean": 0.5, "lowest": 0.25, "highest": 0.75}
    told = seeds.over_seeds(evaluation(means, {}), runs)
    assert told == {"grade": spread | {"ensemble": 0.625}}
    line = "Over 3 seeds: grade 0.500 on average, from 0.250 to 0.750; their ensemble 0.625"
    assert seeds.over_seeds_line(told) == line
    differing = seeds.over_seeds_line(told | {"disagreement": 0.125})
    assert differing == f"{line}, whose policies differ at 12.5% of its steps"
    told = seeds.over_seeds(evaluation(means, {"trained_4": 0.01, "trained_5": -0.02, "trained_6": 0.04}), runs)
    assert list(told) == ["grade", "excess_log_return"] and "ensemble" not in told["excess_log_return"]
    assert seeds.over_seeds_line(told) == "Over 3 seeds: excess 1.00% on average, from -2.00% to 4.00%"
    # Policies on training days beside the test.
    training = evaluation({"trained": 0.75, "hold": 0.5}, {"trained": 0.02})
    test = evaluation({"trained": 0.5, "hold": 0.625, "random": 0.1}, {"trained": -0.01, "random": 0.0})

    def spans(training, test, gap):
        told = {"training": training, "test": test}
        return {name: {"mean": mean, "low": mean - 0.5, "high": None} for name, mean in told.items()} | {"gap": gap}

    result = report.generalisation(training, test)
    excess = {"excess_log_return": spans(0.02, -0.01, 0.03)}
    assert result == {
        "trained": {"grader": "calibrated", **spans(0.75, 0.5, 0.25), **excess},
        "hold": {"grader": "calibrated", **spans(0.5, 0.625, -0.125)},
    }
    assert report.generalisation_line(result) == (
        "Grade on training days and on those of the test: trained 0.750 and 0.500 (excess 2.00 and -1.00 points), "
        "hold 0.500 and 0.625"
    )
    # The same days leave no gap.
    env, _ = parts_of(settings_on(place))[1].episodes("all", 5, TILTS)
    kept = {name: place / name / "checkpoint.pt" for name in ("tilts", "exact")}
    baselines = {name: env.scenario.task.agents[name]() for name in ("hold", "buy_and_hold")}
    test = evaluate(env, trained_agents(kept, env) | baselines, seed=3)
    result = report.generalised(kept, env, test)
    assert list(result) == ["tilts", "exact", "buy_and_hold"]
    assert [entry["gap"] for entry in result.values()] == [0.0] * 3
    assert [result[name]["excess_log_return"]["gap"] for name in kept] == [0.0] * 2


def test_a_training_is_validated_begins_untrained_and_warns_of_rows_that_march_in_step(place, tmp_path):
    # The untrained policy is that of the seed under the moments of the trained one.
    learner = learner_of(settings_on(place, seed=4))
    first = [tensor.clone() for tensor in learner.actor]
    for tensor in (*learner.actor, *learner.moments):
        tensor.add_(1)
    trainers.write_untrained(learner, learner.state_dict(), tmp_path)
    kept = read_checkpoint(tmp_path / "untrained.pt")
    assert same(kept["actor"], first) and same(kept["moments"], learner.moments) and kept["config"]["seed"] == 4
    # A training is validated where a share is for it.
    settings = settings_on(place, validation_fraction=0.3, evaluations=1, patience=2, validation_episodes=3)
    (trainer, splits), learner = parts_of(settings), learner_of(settings)
    assert parts_of(settings_on(place))[0].validated(learner, splits, 0) is learner
    validated = trainer.validated(learner, splits, 0)
    assert isinstance(validated, validation.ValidatedLearner) and (validated.every, validated.patience) == (2, 2)
    assert validated.validation.env.num_envs == 3
    # The seed of a run is added to that of its learner.
    own = A2CConfig(seed=3, num_steps=4, hidden=(8,))
    settings = settings_on(place, seed=4, algorithm="a2c", learner=own)
    assert learner_of(settings).config == replace(own, seed=7)
    assert settings_on(place, ensemble=3).runs.number == 3 and settings_on(place, seeds=2).runs.number == 2
    # Of 8 x 58 days 512 steps of independent rows show 464 (1 - exp(-512 / 464)) = 310.
    out = StringIO()
    learner, console = SimpleNamespace(env=learner_of(settings_on(place)).env), Console(file=out, width=400)
    learner.env.scenario.tape = SimpleNamespace(num_paths=8, num_days=60, first_day=1)
    for told in ({"market_rows": 156.0}, {"market_rows": 155.0}, {}):
        tell_batch(console, learner, {"frames": 512.0, **told})
    assert out.getvalue() == (
        "Batch     512 steps on 156 different days of the market, of 464\n"
        "Batch     512 steps on 155 different days of the market, of 464\n"
        "The rows march in step: independent ones would show 310 days; start them apart with "
        "--env.min-episode-length 10\n"
    )


@pytest.mark.parametrize("validated", [False, True])
def test_members_leave_the_folders_of_single_runs(place, tmp_path, validated):
    given = {"validation_fraction": 0.3} if validated else {}
    settings = settings_on(place, seed=4, ensemble=2, **given)
    trainer, splits = parts_of(settings)
    learner = learner_of(settings)
    trained = trainer.validated(learner, splits, 0)
    assert isinstance(learner, members.Members)
    assert isinstance(trained, validation.ValidatedEnsemble) == validated
    log = MetricsLog(tmp_path)
    log.write({"update": 1.0, "frames": 128.0, "loss": 2.5, "loss.seed_4": 2.0, "loss.seed_5": 3.0})
    log.close()
    runs = runs_of_seeds(settings, tmp_path)
    trainers.write_members(trained, runs, tmp_path)
    for number, run in enumerate(runs):
        files = {"checkpoint.pt", "metrics.csv", "settings.yaml", "untrained.pt"}
        assert {path.name for path in run.folder.iterdir()} == files
        state, untrained = read_checkpoint(run.folder), read_checkpoint(run.folder / "untrained.pt")
        alone = learner_of(settings_on(place, seed=4 + number, **given))
        assert state["config"]["seed"] == 4 + number and ("best" in state) == validated and "best" not in untrained
        assert same(state["actor"], alone.actor) and same(untrained["actor"], alone.actor)
        line = {"update": 1.0, "frames": 128.0, "loss": 2.0 + number}
        assert pd.read_csv(run.folder / "metrics.csv").iloc[0].to_dict() == line
        own = yaml.safe_load((run.folder / "settings.yaml").read_text())
        assert (own["seed"], own["seeds"], own["ensemble"]) == (4 + number, 1, None)
