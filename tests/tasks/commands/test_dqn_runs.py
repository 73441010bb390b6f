"""Deep Q-learning by the command line: runs of its variants, their vote, resuming, and what is refused before work."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from vecenv.tasks.commands import cli
from vecenv.tasks.commands.run_folder import read_checkpoint

BOOKS = ("--env.synthetic-hours", "2", "--env.episode-steps", "60", "--env.embargo", "60")
SMALL = (
    "--task", "crypto_lob", "--algorithm", "dqn", "--no-compile", "--num-envs", "16", "--episodes", "4",
    "--validation-episodes", "4", "--evaluations", "2", "--dqn.total-frames", "1024", "--dqn.num-steps", "16",
    "--dqn.minibatches", "4", "--dqn.minibatch-size", "64", "--dqn.buffer-size", "1024", *BOOKS,
)  # fmt: skip
VARIANTS = {"dqn": (), "double": ("--dqn.double",), "duelling": ("--dqn.duelling", "--dqn.hidden", "8", "8")}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Folders of a run of each variant, the last one beside the first."""
    place = tmp_path_factory.mktemp("dqn")
    folders = [place / name for name in VARIANTS]
    for folder, words in zip(folders, VARIANTS.values(), strict=True):
        beside = ("--beside", str(folders[0])) if folder == folders[-1] else ()
        assert cli.main(["train", *SMALL, *words, *beside, "--folder", str(folder)]) == 0
    return folders


@pytest.mark.assembly
def test_a_run_leaves_what_others_leave(runs):
    for folder, name in zip(runs, VARIANTS, strict=True):
        log = pd.read_csv(folder / "metrics.csv")
        assert log["frames"].tolist() == [256, 512, 768, 1024]
        assert log["epsilon"].iloc[0] == 1 and log["td_loss"].notna().all() and log["validation_reward"].notna().any()
        state = read_checkpoint(folder)
        assert (state["config"]["double"], state["config"]["duelling"]) == (name == "double", name == "duelling")
        assert bool(state["critic"]) == (name == "duelling") and "best" in state
        assert (folder / "learning_curve.png").is_file() and (folder / "trades.png").is_file()
    agents = json.loads((runs[-1] / "metrics.json").read_text())["evaluation"]["agents"]
    assert list(agents)[:3] == ["trained", "untrained", "dqn"]


@pytest.mark.assembly
def test_three_runs_vote(runs, tmp_path):
    target = tmp_path / "told.json"
    words = ["evaluate", "--checkpoint", *map(str, runs), "--episodes", "4", "--agents", "hold", "--json", str(target)]
    assert cli.main(words) == 0
    assert list(json.loads(target.read_text())["agents"]) == [*VARIANTS, "ensemble", "hold"]


@pytest.mark.nightly
def test_a_run_is_resumed(runs, tmp_path):
    folder = tmp_path / "run"
    assert cli.main(["train", *SMALL, "--folder", str(folder), "--dqn.total-frames", "512", "--dqn.no-anneal"]) == 0
    assert cli.main(["train", "--resume", str(folder), "--dqn.total-frames", "768"]) == 0
    assert pd.read_csv(folder / "metrics.csv")["update"].tolist() == [1, 2, 3]


@pytest.mark.nightly
def test_seeds_vote_and_tell_how_much_they_differ(runs, tmp_path, capsys):
    folder = tmp_path / "seeds"
    assert cli.main(["train", *SMALL, "--seeds", "3", "--folder", str(folder)]) == 0
    document = json.loads((folder / "metrics.json").read_text())
    assert "ensemble" in document["evaluation"]["agents"] and 0 < document["seeds"]["disagreement"] <= 1
    assert "whose policies differ at" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--task", "stock_trading"), "which those of task 'stock_trading' with env.action tilt are not"),
        (("--task", "single_stock"), "which those of task 'single_stock' with env.action discrete are not"),
        (("--task", "execution"), "which those of task 'execution' are not"),
        (("--task", "crypto_lob", "--env.action", "limit"), "of task 'crypto_lob' with env.action limit are not"),
        (("--task", "crypto_lob", "--dqn.buffer-size", "64"), "num_steps 16 x num_envs 1024, got 64"),
        (("--task", "crypto_lob", "--ppo.gamma", "0.9"), "--ppo.gamma belongs to --algorithm ppo"),
        (("--task", "crypto_lob", "--dqn.epochs", "2"), "--dqn.epochs belongs to a learner that reuses its batch"),
        (("--task", "crypto_lob", "--group-size", "2"), "--group-size belongs to --algorithm grpo"),
    ],
)
def test_what_does_not_fit_is_refused_before_any_work(tmp_path, capsys, words, told):
    folder = tmp_path / "run"
    assert cli.main(["train", "--algorithm", "dqn", *words, "--folder", str(folder)]) == cli.BAD_INPUT
    captured = capsys.readouterr()
    assert told in captured.err and captured.out == "" and not folder.exists()


@pytest.mark.assembly
def test_settings_of_dqn_belong_to_it(tmp_path, capsys):
    words = ["train", "--task", "crypto_lob", "--dqn.double", "--folder", str(tmp_path / "run")]
    assert cli.main(words) == cli.BAD_INPUT
    assert "--dqn.double belongs to --algorithm dqn" in capsys.readouterr().err


@pytest.mark.assembly
def test_the_help_lists_the_settings(capsys):
    assert cli.main(["train", "--task", "crypto_lob", "--algorithm", "dqn", "--help"]) == 0
    told = capsys.readouterr().out
    assert "--dqn.double" in told and "--dqn.duelling" in told and "of --algorithm ppo: --ppo.*" in told


@pytest.mark.nightly
def test_a_run_of_ppo_starts_no_run_of_dqn(runs, tmp_path, capsys):
    ppo = tmp_path / "ppo"
    words = [word.replace("--dqn.", "--ppo.") if word != "dqn" else "ppo" for word in SMALL]
    drop = [words.index(name) for name in ("--ppo.minibatch-size", "--ppo.buffer-size")]
    words = [word for place, word in enumerate(words) if place not in {at + more for at in drop for more in (0, 1)}]
    assert cli.main(["train", *words, "--folder", str(ppo)]) == 0
    capsys.readouterr()
    assert cli.main(["train", *SMALL, "--initial", str(ppo), "--folder", str(tmp_path / "run")]) == cli.BAD_INPUT
    assert "its actor gives distributions of actions, which cannot start a run whose actor" in capsys.readouterr().err
    assert cli.main(["train", *SMALL, "--initial", str(runs[0]), "--folder", str(tmp_path / "run")]) == 0
