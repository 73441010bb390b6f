"""SAC, TD3 and DDPG by the command line: runs, their ensemble, resuming, and what is refused before work."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from vecenv.learn.diversity import draws_actions
from vecenv.registry import task_named
from vecenv.tasks.commands import cli
from vecenv.tasks.commands.run_folder import checkpoint_path, read_checkpoint

NAMES = ("sac", "td3", "ddpg")
SMALL = (
    "--preset", "planted", "--no-compile", "--num-paths", "8", "--num-days", "60", "--num-envs", "16",
    "--episodes", "8", "--validation-episodes", "4", "--evaluations", "2", "--env.episode-length", "20",
)  # fmt: skip


def words_of(name):
    settings = {
        "total-frames": 256, "num-steps": 4, "minibatches": 2, "minibatch-size": 32, "buffer-size": 512, "hidden": 8,
    }  # fmt: skip
    return ["--algorithm", name, *(word for key, value in settings.items() for word in (f"--{name}.{key}", str(value)))]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Folders of a run of each, the last one beside the first."""
    place = tmp_path_factory.mktemp("continuous")
    folders = [place / name for name in NAMES]
    for folder, name in zip(folders, NAMES, strict=True):
        beside = ["--beside", str(folders[0])] if folder == folders[-1] else []
        assert cli.main(["train", *SMALL, *words_of(name), *beside, "--folder", str(folder)]) == 0
    return folders


@pytest.mark.assembly
def test_a_run_leaves_what_one_of_ppo_leaves(runs, tmp_path):
    ppo = tmp_path / "ppo"
    words = ["--ppo.total-frames", "512", "--ppo.minibatches", "2", "--ppo.policy", "flat", "--folder", str(ppo)]
    assert cli.main(["train", *SMALL, *words]) == 0
    for folder, name in zip(runs, NAMES, strict=True):
        assert {file.name for file in folder.iterdir()} == {file.name for file in ppo.iterdir()}
        log = pd.read_csv(folder / "metrics.csv")
        assert log["frames"].tolist() == [64, 128, 192, 256] and log["td_loss"].notna().all()
        assert ("temperature" in log) == (name == "sac") and "replay" in read_checkpoint(folder)
    agents = json.loads((runs[-1] / "metrics.json").read_text())["evaluation"]["agents"]
    assert list(agents)[:3] == ["trained", "untrained", "sac"] and "best_rule" in agents


@pytest.mark.assembly
def test_three_runs_act_together(runs, tmp_path):
    target = tmp_path / "told.json"
    words = ["evaluate", "--checkpoint", *map(str, runs), "--episodes", "4", "--json", str(target)]
    assert cli.main(words) == 0
    told = json.loads(target.read_text())
    assert list(told["agents"])[:4] == [*NAMES, "ensemble"]
    # Heads of two kinds have no divergence from each other.
    assert told["diversity"]["distance"] > 0 and told["diversity"]["kl"] is None
    assert [draws_actions(checkpoint_path(folder)) for folder in runs] == [True, False, False]


@pytest.mark.nightly
def test_a_run_is_resumed_and_starts_another(runs, tmp_path, capsys):
    folder = tmp_path / "run"
    assert cli.main(["train", *SMALL, *words_of("td3"), "--initial", str(runs[2]), "--folder", str(folder)]) == 0
    assert cli.main(["train", "--resume", str(folder), "--td3.total-frames", "320"]) == 0
    assert pd.read_csv(folder / "metrics.csv")["update"].tolist() == [1, 2, 3, 4, 5]
    capsys.readouterr()
    words = ["train", *SMALL, *words_of("sac"), "--initial", str(runs[1]), "--folder", str(tmp_path / "other")]
    assert cli.main(words) == cli.BAD_INPUT
    assert "trained with head gaussian, which cannot start a run with head tanh_normal" in capsys.readouterr().err


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ("--task", "crypto_lob"),
            "that are numbers within bounds, which those of task 'crypto_lob' with",
        ),
        (("--task", "single_stock"), "of task 'single_stock' with env.action discrete are not"),
        (("--task", "execution"), "which those of task 'execution' are not"),
        (("--NAME.buffer-size", "64"), "num_steps 4 x num_envs 2048, got 64"),
        (("--NAME.buffer-size", "1000000000000"), "kept steps need"),
        (("--NAME.policy", "symbol"), "policy must be flat for this learner, got symbol"),
        (("--NAME.epochs", "2"), "epochs belongs to a learner that reuses its batch"),
        (("--ppo.gamma", "0.9"), "--ppo.gamma belongs to --algorithm ppo"),
    ],
)
def test_what_does_not_fit_is_refused_before_any_work(tmp_path, capsys, name, words, told):
    folder = tmp_path / "run"
    words = [word.replace("NAME", name) for word in words]
    assert cli.main(["train", "--algorithm", name, *words, "--folder", str(folder)]) == cli.BAD_INPUT
    captured = capsys.readouterr()
    assert told in " ".join(captured.err.split()) and captured.out == "" and not folder.exists()


@pytest.mark.parametrize(
    ("task", "actions"),
    [
        ("crypto_lob", {"target": False, "step": False, "continuous": True, "limit": False}),
        ("agent_market", {"discrete": False, "continuous": True, "limit": False}),
        ("portfolio", {"discrete": False, "orders": False, "weights": True, "limit_weights": True}),
        ("stock_trading", {"shares": True, "weights": True, "tilt": True}),
        ("signals", {"shares": True, "weights": True, "tilt": True}),
        ("news_signals", {"levels": False, "continuous": True}),
    ],
)
def test_tasks_tell_which_of_their_actions_are_numbers(task, actions):
    record = task_named(task)
    assert {action: record.numbers(type(record.config())(action=action)) for action in actions} == actions
