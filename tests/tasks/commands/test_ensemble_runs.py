"""``vecenv train --ensemble``: the folders of its members, how it goes on, and what is refused; ``--combine``."""

from __future__ import annotations

import json
import os
import shutil
import signal

import pandas as pd
import pytest
import torch
import yaml

from tests.tasks.commands.small_runs import train_args
from vecenv.learn.checkpoints import load_checkpoint
from vecenv.tasks.commands import cli
from vecenv.tasks.commands import train as train_command
from vecenv.tasks.commands.learners import ENSEMBLES
from vecenv.tasks.commands.run_folder import read_checkpoint
from vecenv.tasks.commands.train_settings import STACKED

WORDS = ("--env.action", "tilt", "--ppo.policy", "symbol", "--episodes", "6", "--num-envs", "16", "--seed", "4")
VALIDATED = ("--validation-fraction", "0.3", "--validation-episodes", "5", "--evaluations", "2")
MEMBER_FILES = {"checkpoint.pt", "metrics.csv", "settings.yaml", "untrained.pt"}
SPEED = "samples_per_second"


@pytest.fixture(scope="module")
def trained(place, tmp_path_factory):
    """The folder of an ensemble of three."""
    folder = tmp_path_factory.mktemp("ensemble") / "run"
    assert cli.main(train_args(place, *WORDS, *VALIDATED, "--ensemble", "3", "--folder", str(folder))) == 0
    return folder


@pytest.mark.nightly
def test_every_member_has_the_folder_of_a_single_run(trained, place, tmp_path):
    for seed in (4, 5, 6):
        assert {path.name for path in (trained / f"seed_{seed}").iterdir()} == MEMBER_FILES
    own = yaml.safe_load((trained / "seed_5" / "settings.yaml").read_text())
    assert (own["seed"], own["seeds"], own.get("ensemble")) == (5, 1, None)
    assert yaml.safe_load((trained / "settings.yaml").read_text())["ensemble"] == 3
    alone = tmp_path / "alone"
    words = train_args(place, *WORDS, *VALIDATED, "--seed", "5", "--folder", str(alone))
    assert cli.main(words) == 0
    logs = [pd.read_csv(folder / "metrics.csv") for folder in (trained / "seed_5", alone)]
    assert list(logs[0].columns) == list(logs[1].columns)
    # Validations are on the same episodes for all members.
    same = [name for name in logs[0].columns if name != SPEED and not name.startswith("validation_")]
    pd.testing.assert_frame_equal(logs[0][same], logs[1][same], check_dtype=False, rtol=1e-3, atol=1e-4)
    states = [read_checkpoint(folder) for folder in (trained / "seed_5", alone)]
    assert states[0].keys() == states[1].keys() and states[0]["config"] == states[1]["config"]
    assert states[0]["best"].keys() == states[1]["best"].keys()
    for name in ("actor", "critic", "moments"):
        for one, other in zip(states[0][name], states[1][name], strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    # The untrained policy is that of the seed: no best policy stands in its place.
    untrained = [load_checkpoint(place / "untrained.pt", torch.device("cpu")) for place in (trained / "seed_5", alone)]
    assert "best" not in untrained[0] and untrained[0].keys() == untrained[1].keys()
    assert all(torch.equal(one, other) for one, other in zip(*(state["actor"] for state in untrained), strict=True))
    assert not torch.equal(untrained[0]["actor"][0], states[0]["best"]["actor"][0])


def test_every_stacked_algorithm_has_its_ensemble():
    assert set(ENSEMBLES) == set(STACKED)


@pytest.mark.nightly
def test_members_of_cvar_ppo_are_the_runs_of_their_seeds(place, tmp_path):
    words = [word.replace("--ppo.", "--cppo.") for word in (*WORDS, "--algorithm", "cppo")]
    start = [word.replace("--ppo.", "--cppo.") for word in train_args(place)]
    assert cli.main([*start, *words, "--ensemble", "2", "--folder", str(tmp_path / "both")]) == 0
    assert cli.main([*start, *words, "--seed", "5", "--folder", str(tmp_path / "alone")]) == 0
    one, other = (read_checkpoint(folder) for folder in (tmp_path / "both" / "seed_5", tmp_path / "alone"))
    assert one.keys() == other.keys() and one["config"] == other["config"]
    for name in ("actor", "critic"):
        for tensor, alone in zip(one[name], other[name], strict=True):
            torch.testing.assert_close(tensor, alone, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(one["nu"], other["nu"], rtol=1e-4, atol=1e-6)
    # It goes on as a single run.
    more = ("--cppo.total-frames", str(2 * one["config"]["total_frames"]))
    assert cli.main(["train", "--resume", str(tmp_path / "both" / "seed_5"), *more]) == 0


@pytest.mark.nightly
def test_members_keep_their_best_policies_by_their_own_validations(trained):
    log = pd.read_csv(trained / "metrics.csv")
    for seed in (4, 5, 6):
        best = read_checkpoint(trained / f"seed_{seed}")["best"]
        rewards = log[f"validation_reward.seed_{seed}"]
        assert best["score"] == pytest.approx(rewards.max()) and best["update"] == rewards.idxmax() + 1
        assert best["sharpe"] == pytest.approx(log[f"validation_sharpe.seed_{seed}"][rewards.idxmax()])


@pytest.mark.nightly
def test_a_member_resumes_as_a_single_run(trained, tmp_path):
    folder = shutil.copytree(trained / "seed_6", tmp_path / "seed_6")
    assert cli.main(["train", "--resume", str(folder), "--ppo.total-frames", "1280"]) == 0
    assert pd.read_csv(folder / "metrics.csv")["update"].tolist() == list(range(1, 11))


@pytest.mark.nightly
def test_an_interrupted_ensemble_goes_on_bit_for_bit(trained, place, tmp_path, monkeypatch, capsys):
    show, folder = train_command.TrainingBar.show, tmp_path / "run"

    def interrupted(bar, metrics):
        show(bar, metrics)
        if metrics["update"] == 3:
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(train_command.TrainingBar, "show", interrupted)
            words = train_args(place, *WORDS, *VALIDATED, "--ensemble", "3", "--folder", str(folder))
            assert cli.main(words) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert f"vecenv train --resume {folder}" in capsys.readouterr().out
    assert read_checkpoint(folder)["update"] == 3 and not list(folder.glob("seed_*"))
    assert cli.main(["train", "--resume", str(folder)]) == 0
    for seed in (4, 5, 6):
        one, other = (read_checkpoint(place / f"seed_{seed}") for place in (folder, trained))
        for name in ("actor", "critic", "moments"):
            assert all(map(torch.equal, one[name], other[name]))
        assert all(map(torch.equal, one["best"]["actor"], other["best"]["actor"]))
        logs = [pd.read_csv(place / f"seed_{seed}" / "metrics.csv").drop(columns=SPEED) for place in (folder, trained)]
        pd.testing.assert_frame_equal(*logs, check_exact=True)


@pytest.mark.nightly
def test_the_folder_is_evaluated_with_each_combination(trained, tmp_path, capsys):
    found = {}
    for words in (("mean",), ("weighted", "--sharpe-temperature", "0.01"), ("vote",), ("select",)):
        target = tmp_path / "told.json"
        args = ["evaluate", "--checkpoint", str(trained), "--episodes", "6", "--seed", "4", "--agents", "hold"]
        assert cli.main([*args, "--combine", *words, "--json", str(target)]) == 0
        told = json.loads(target.read_text())
        found[words[0]] = {name: agent["cumulative_return"]["mean"] for name, agent in told["agents"].items()}
        assert told["combine"] == words[0] and "Diversity of the policies" in capsys.readouterr().out
    diversity = told["diversity"]
    assert len(diversity["kl"]) == 3 and diversity["kl"][0][0] == 0.0 and diversity["mean_kl"] > 0
    assert 0 <= diversity["disagreement"] <= 1 and diversity["distance"] > 0
    sharpes = {seed: read_checkpoint(trained / f"seed_{seed}")["best"]["sharpe"] for seed in (4, 5, 6)}
    best = f"trained_{max(sharpes, key=sharpes.get)}"
    assert found["select"]["ensemble"] == found["select"][best]
    assert len({found[kind]["ensemble"] for kind in ("mean", "weighted", "vote")}) == 3
    reported = json.loads((trained / "metrics.json").read_text())["seeds"]["diversity"]
    # The same policies on the same held-out episodes.
    assert reported == diversity


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--ensemble", "1"), "ensemble must be at least 2, got 1"),
        (("--ensemble", "2", "--seeds", "2"), "--seeds belongs to a training without --ensemble"),
        (("--ensemble", "2", "--algorithm", "exact"), "--ensemble belongs to a training by --algorithm ppo or cppo"),
        (("--ensemble", "2", "--initial", "other"), "--initial belongs to a training without --ensemble"),
        (("--ensemble", "2", "--ppo.target-kl", "0.1"), "target_kl stops one learner's epochs"),
        (("--ensemble", "2", "--ppo.by-reference"), "by_reference keeps one table for one policy"),
        (("--ensemble", "2", "--combine", "select"), "--combine select needs validations: set a --validation-fraction"),
        (
            ("--ensemble", "2", "--combine", "mean", "--sharpe-temperature", "2"),
            "--sharpe-temperature belongs to --combine weighted",
        ),
        (("--combine", "vote"), "--combine belongs to several --seeds, or --ensemble"),
        (
            ("--ensemble", "2", "--validation-fraction", "0.2", "--combine", "weighted", "--sharpe-temperature", "0"),
            "temperature must be positive, got 0",
        ),
        (("--seed", str(2**32 - 2), "--ensemble", "3"), f"seed must be in [0, 2^32), got {2**32}"),
    ],
)
@pytest.mark.assembly
def test_what_cannot_be_an_ensemble_is_refused_before_any_work(place, tmp_path, capsys, words, told):
    assert cli.main(train_args(place, *words, "--folder", str(tmp_path / "run"))) == cli.BAD_INPUT
    captured = capsys.readouterr()
    assert told in captured.err and "Making the market" not in captured.err and not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--task", "curriculum"), "--ensemble needs rules that stay: those of task 'curriculum' follow a schedule"),
        (
            ("--task", "crypto_lob", "--env.cost-ramp", "5"),
            "those of task 'crypto_lob' follow a schedule (env.cost_ramp)",
        ),
        (
            ("--task", "crypto_lob", "--env.cost-ramp", "0", "--validation-fraction", "0.2", "--combine", "select"),
            "--combine select needs accounts, which task 'crypto_lob' does not have",
        ),
        (("--task", "single_stock", "--combine", "vote"), "are combined by --combine mean alone"),
    ],
)
@pytest.mark.assembly
def test_tasks_that_cannot_be_an_ensemble_are_refused_before_any_work(tmp_path, capsys, words, told):
    assert cli.main(["train", "--ensemble", "2", *words, "--folder", str(tmp_path / "run")]) == cli.BAD_INPUT
    captured = capsys.readouterr()
    assert told in captured.err and not (tmp_path / "run").exists()


@pytest.mark.nightly
def test_files_that_cannot_be_combined_are_refused_before_any_work(trained, place, capsys):
    folder = str(trained / "seed_4")
    for words, told in (
        (("--checkpoint", folder, "--combine", "vote"), "--combine vote needs several checkpoints, got 1"),
        (("--checkpoint", str(place / "run"), folder, "--combine", "select"), "holds no Sharpe ratio of a validation"),
        (("--combine", "vote"), "--combine belongs to --checkpoint"),
    ):
        assert cli.main(["evaluate", *words]) == cli.BAD_INPUT
        captured = capsys.readouterr()
        assert told in captured.err and "Making the market" not in captured.out, words
    assert cli.main(["evaluate", "--checkpoint", str(trained / "checkpoint.pt"), "--episodes", "3"]) == cli.BAD_INPUT
    assert "holds the members of an ensemble in one batch; each is in a folder seed_K" in capsys.readouterr().err
