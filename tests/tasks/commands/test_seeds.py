"""``vecenv train --seeds``: each seed's run, what they are together, and how they go on."""

from __future__ import annotations

import json
import os
import shutil
import signal

import pandas as pd
import pytest
import torch
import yaml

from tests.tasks.commands.small_runs import GROUPS, RUN_FILES, train_args
from vecenv.system.write_lock import WriteLock
from vecenv.tasks.commands import cli
from vecenv.tasks.commands import train as train_command
from vecenv.tasks.commands.comparison import config_of
from vecenv.tasks.commands.run_folder import read_checkpoint
from vecenv.tasks.commands.seeds import over_seeds_line, policies_by_folder
from vecenv.tasks.commands.train_settings import TrainSettings
from vecenv.tasks.stock_trading.agents import BASELINES

SEED_FILES = {"checkpoint.pt", "metrics.csv", "settings.yaml", "untrained.pt"}
TILTS = ("--env.action", "tilt", "--ppo.policy", "symbol", "--episodes", "6")
VALIDATED = ("--validation-fraction", "0.3", "--validation-episodes", "5", "--evaluations", "2")
TRADED = [f"trained_{seed}" for seed in (4, 5, 6)]


def assert_equal(left, right, where=""):
    """Two states of the same tensors and numbers, bit for bit."""
    assert type(left) is type(right), where
    if isinstance(left, dict):
        assert left.keys() == right.keys(), where
        for name in left:
            assert_equal(left[name], right[name], f"{where}.{name}")
    elif isinstance(left, list | tuple):
        assert len(left) == len(right), where
        for number, pair in enumerate(zip(left, right, strict=True)):
            assert_equal(*pair, f"{where}.{number}")
    else:
        same = torch.equal(left, right) if isinstance(left, torch.Tensor) else left == right
        assert same, where


def assert_same_run(left, right):
    """Checkpoint, initial policy and log of two folders, but for their speed."""
    for name in ("checkpoint.pt", "untrained.pt"):
        assert_equal(*(read_checkpoint(folder / name) for folder in (left, right)))
    logs = [pd.read_csv(folder / "metrics.csv").drop(columns="samples_per_second") for folder in (left, right)]
    pd.testing.assert_frame_equal(*logs, check_exact=True)
    settings = [yaml.safe_load((folder / "settings.yaml").read_text()) for folder in (left, right)]
    assert settings[0] == settings[1]


@pytest.fixture(scope="module")
def trained(place, tmp_path_factory):
    """The folder of a run of three seeds, and what it printed."""
    folder = tmp_path_factory.mktemp("seeds") / "run"
    words = (*TILTS, *VALIDATED, "--seed", "4", "--seeds", "3", "--folder", str(folder))
    with pytest.MonkeyPatch.context() as patch:
        told: list[str] = []
        show = train_command.wide_console

        def kept():
            console = show()
            write = console.print
            patch.setattr(console, "print", lambda *what, **how: (told.extend(map(str, what)), write(*what, **how)))
            return console

        patch.setattr(train_command, "wide_console", kept)
        assert cli.main(train_args(place, *words)) == 0
    return folder, told


@pytest.mark.nightly
def test_every_seed_has_a_folder_of_its_own_within_that_of_all(trained):
    folder, _ = trained
    own = {"checkpoint.pt", "metrics.csv", "untrained.pt"}
    names = {f"seed_{seed}" for seed in (4, 5, 6)}
    assert {path.name for path in folder.iterdir()} == RUN_FILES - own | names | {"policy.png"}
    for name in names:
        assert {path.name for path in (folder / name).iterdir()} == SEED_FILES
    assert yaml.safe_load((folder / "settings.yaml").read_text())["seeds"] == 3


@pytest.mark.nightly
def test_all_seeds_and_their_ensemble_are_compared_on_the_same_episodes(trained):
    folder, told = trained
    document = json.loads((folder / "metrics.json").read_text())
    agents = document["evaluation"]["agents"]
    assert list(agents) == [*TRADED, "ensemble", "untrained", *BASELINES]
    assert list(document["generalisation"]) == [*TRADED, "untrained", "buy_and_hold"]
    excess = {name: agents[name]["excess_log_return"]["mean"] for name in (*TRADED, "ensemble")}
    over = document["seeds"]["excess_log_return"]
    assert over["by_seed"] == {name.removeprefix("trained_"): excess[name] for name in TRADED}
    values = sorted(over["by_seed"].values())
    assert values[0] < values[-1]
    assert (over["lowest"], over["highest"]) == (values[0], values[-1])
    assert over["mean"] == pytest.approx(sum(values) / 3) and over["ensemble"] == excess["ensemble"]
    grades = {name: agents[name]["grade"]["mean"] for name in TRADED}
    assert list(document["seeds"]["grade"]["by_seed"].values()) == list(grades.values())
    (line,) = [line for line in told if line.startswith("Over 3 seeds: ")]
    assert line == over_seeds_line(document["seeds"])
    assert (
        f"from {100 * values[0]:.2f}% to {100 * values[-1]:.2f}%; their ensemble {100 * excess['ensemble']:.2f}%"
        in line
    )
    assert [line for line in told if line.startswith("Seed ")] == [f"Seed      {seed}" for seed in (4, 5, 6)]


@pytest.mark.nightly
def test_a_seed_learns_what_a_run_of_it_alone_does(trained, place, tmp_path):
    words = (*TILTS, *VALIDATED, "--seed", "5", "--folder", str(tmp_path / "alone"))
    assert cli.main(train_args(place, *words)) == 0
    assert_same_run(trained[0] / "seed_5", tmp_path / "alone")


@pytest.mark.nightly
@pytest.mark.parametrize(
    "words",
    [
        (*GROUPS, "--grpo.total-frames", "1536"),
        ("--algorithm", "exact", "--env.action", "tilt", "--exact.total-frames", "4096", "--exact.policy", "symbol"),
    ],
    ids=["groups", "exact"],
)
def test_other_learners_take_seeds_too(place, tmp_path, words):
    for extra in (("--seeds", "2", "--folder", "both"), ("--seed", "1", "--folder", "alone")):
        *names, folder = extra
        assert cli.main(train_args(place, "--episodes", "3", *words, *names, str(tmp_path / folder))) == 0
    assert_same_run(tmp_path / "both" / "seed_1", tmp_path / "alone")


@pytest.mark.nightly
def test_every_seed_begins_on_the_first_round_of_paths(place, tmp_path):
    market = ["--market", "random_walk", "--symbols", "A", "B", "--num-paths", "5", "--num-days", "120"]
    words = ["train", "--preset", str(place / "tiny.yaml"), *market, "--episodes", "3", "--refresh-every", "1"]
    words += ["--ppo.total-frames", "1536"]
    assert cli.main([*words, "--seeds", "2", "--folder", str(tmp_path / "both")]) == 0
    assert cli.main([*words, "--seed", "1", "--folder", str(tmp_path / "alone")]) == 0
    assert_same_run(tmp_path / "both" / "seed_1", tmp_path / "alone")


@pytest.mark.nightly
def test_an_interruption_in_a_later_seed_is_resumed(trained, place, tmp_path, monkeypatch, capsys):
    show, shown = train_command.TrainingBar.show, []

    def interrupted(bar, metrics):
        show(bar, metrics)
        shown.append(metrics["update"])
        if len(shown) == 3:
            os.kill(os.getpid(), signal.SIGINT)

    folder = tmp_path / "a run"
    words = (*TILTS, *VALIDATED, "--seed", "4", "--seeds", "3", "--folder", str(folder))
    # A shell that starts the tests in the background makes them ignore the signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(train_command.TrainingBar, "show", interrupted)
            assert cli.main(train_args(place, *words)) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert f"vecenv train --resume '{folder}'" in capsys.readouterr().out
    assert {path.name for path in folder.iterdir()} == {"settings.yaml", "seed_4", "seed_5"}
    assert read_checkpoint(folder / "seed_5")["update"] == 1
    assert cli.main(["train", "--resume", str(folder)]) == 0
    for seed in (4, 5, 6):
        assert_same_run(folder / f"seed_{seed}", trained[0] / f"seed_{seed}")
    reports = [json.loads((place / "metrics.json").read_text()) for place in (folder, trained[0])]
    for report in reports:
        del report["training_seconds"]
    assert reports[0] == reports[1]


@pytest.mark.nightly
def test_a_resumption_may_add_seeds_and_updates(trained, tmp_path):
    folder = shutil.copytree(trained[0], tmp_path / "run")
    words = ["--seeds", "4", "--ppo.total-frames", "1536", "--episodes", "3"]
    assert cli.main(["train", "--resume", str(folder), *words]) == 0
    for seed in (4, 5, 6, 7):
        assert pd.read_csv(folder / f"seed_{seed}" / "metrics.csv")["update"].tolist() == [1, 2, 3]
    assert list(json.loads((folder / "metrics.json").read_text())["seeds"]["grade"]["by_seed"]) == ["4", "5", "6", "7"]


@pytest.mark.nightly
def test_a_run_of_several_seeds_and_its_parts_are_evaluated(trained, tmp_path):
    folder, target = trained[0], tmp_path / "told.json"
    before = json.loads((folder / "metrics.json").read_text())["evaluation"]["agents"]

    def evaluated(*places):
        words = ["--seed", "4", "--episodes", "6", "--agents", "hold", "buy_and_hold", "--json", str(target)]
        assert cli.main(["evaluate", "--checkpoint", *map(str, places), *words]) == 0
        told = json.loads(target.read_text())
        return told["checkpoint"], {name: agent["cumulative_return"] for name, agent in told["agents"].items()}

    returns = {name: agent["cumulative_return"] for name, agent in before.items()}
    baselines = {name: returns[name] for name in ("hold", "buy_and_hold")}
    files = [str(folder / f"seed_{seed}" / "checkpoint.pt") for seed in (4, 5, 6)]
    whole = {name: returns[name] for name in (*TRADED, "ensemble")} | baselines
    assert evaluated(folder) == (files, whole)
    paths, some = evaluated(folder / "seed_6", files[0])
    assert paths == [files[2], files[0]] and list(some) == ["seed_6", "seed_4", "ensemble", *baselines]
    assert (some["seed_6"], some["seed_4"]) == (returns["trained_6"], returns["trained_4"])
    assert some["ensemble"] not in (some["seed_6"], some["seed_4"], whole["ensemble"])
    assert evaluated(folder / "seed_5") == (files[1], {"trained": returns["trained_5"]} | baselines)


@pytest.mark.nightly
@pytest.mark.parametrize(("action", "averaged"), [("orders", False), ("discrete", True), ("limit_weights", True)])
def test_lists_of_orders_have_no_ensemble(tmp_path, action, averaged):
    words = ["train", "--task", "multi_stock_3", "--market", "synthetic", "--num-paths", "4", "--num-days", "320"]
    words += ["--no-compile", "--num-envs", "8", "--episodes", "4", "--env.action", action, "--seeds", "2"]
    words += ["--ppo.num-steps", "8", "--ppo.total-frames", "64", "--ppo.minibatches", "1", "--ppo.hidden", "8"]
    assert cli.main([*words, "--folder", str(tmp_path / "run")]) == 0
    document = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert ("ensemble" in document["evaluation"]["agents"]) == averaged
    assert ("ensemble" in document["seeds"]["grade"]) == averaged
    assert ("; their ensemble" in over_seeds_line(document["seeds"])) == averaged


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--seeds", "0"), "seeds must be at least 1, got 0"),
        (
            ("--seeds", "2", "--algorithm", "grpo", "--model", "m"),
            "--seeds belongs to --algorithm grpo without --model",
        ),
        (("--seed", str(2**32 - 2), "--seeds", "3"), f"seed must be in [0, 2^32), got {2**32}"),
    ],
)
@pytest.mark.assembly
def test_seeds_that_cannot_be_are_refused_before_any_work(place, tmp_path, capsys, words, told):
    assert cli.main(train_args(place, *words, "--folder", str(tmp_path / "run"))) == cli.BAD_INPUT
    captured = capsys.readouterr()
    assert told in captured.err and "Making the market" not in captured.err and not (tmp_path / "run").exists()


@pytest.mark.nightly
def test_folders_of_other_runs_are_refused(trained, place, capsys):
    folder, single = trained[0], place / "run"
    for words, told in (
        (train_args(place, "--folder", str(folder)), f"{folder} already holds a run"),
        (train_args(place, "--folder", str(folder), "--seeds", "2"), f"{folder} already holds a run"),
        (train_args(place, "--folder", str(single), "--seeds", "2"), f"{single} already holds a run"),
        (["train", "--resume", str(single), "--seeds", "2"], f"{single}: there is no checkpoint of one of the 2 seeds"),
        (["train", "--resume", str(folder), "--seeds", "1"], f"{folder}/checkpoint.pt: there is no checkpoint"),
    ):
        assert cli.main(words) == cli.BAD_INPUT
        captured = capsys.readouterr()
        assert told in captured.err and captured.out == "", words


@pytest.mark.nightly
def test_what_is_damaged_in_a_seeds_run_is_refused_before_the_market_is_made(trained, tmp_path, capsys):
    folder = shutil.copytree(trained[0], tmp_path / "run")
    checkpoint = folder / "seed_6" / "checkpoint.pt"
    checkpoint.write_bytes(checkpoint.read_bytes()[:-900])
    assert cli.main(["train", "--resume", str(folder)]) == cli.BAD_INPUT
    captured = capsys.readouterr()
    assert captured.err == f"vecenv train: error: {checkpoint}: not a checkpoint, or a damaged one\n"
    assert captured.out == ""


@pytest.mark.nightly
def test_a_seed_that_is_being_written_is_not_written_by_another(trained, tmp_path, capsys):
    folder = shutil.copytree(trained[0], tmp_path / "run")
    with WriteLock(folder / "seed_5"):
        assert cli.main(["train", "--resume", str(folder), "--episodes", "3"]) == cli.BAD_INPUT
    assert f"{folder / 'seed_5'} is already being written" in capsys.readouterr().err


def test_a_language_model_is_trained_with_one_seed():
    task = "single_stock"
    settings = TrainSettings(env=config_of(task), task=task, algorithm="grpo", model="m", seeds=2)
    with pytest.raises(ValueError, match="a language model is trained with one seed: set --seeds 1, not 2"):
        settings.rows()


def checkpoint_in(folder, name="checkpoint.pt"):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).touch()
    return folder if name == "checkpoint.pt" else folder / name


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
