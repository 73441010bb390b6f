"""Whole runs of ``vecenv train``, small and eager: what each algorithm leaves, how runs go on, and their evaluation."""

import json
import os
import signal
from pathlib import Path

import pandas as pd
import pytest
import torch
import yaml
from matplotlib.figure import Figure

from tests.learn.test_trackers import Memory
from tests.tasks.commands.small_runs import made_run, settings_on
from vecenv.learn import trackers
from vecenv.system.preset_files import as_values
from vecenv.tasks.commands import cli
from vecenv.tasks.experiment import experiment, plan, resumed_settings, train_settings
from vecenv.tasks.experiment.checkpoints import read_checkpoint
from vecenv.tasks.stock_trading.agents import BASELINES

pytestmark = pytest.mark.assembly

ALL_FILES = {"checkpoint.pt", "learning_curve.png", "metrics.csv", "metrics.json", "settings.yaml", "untrained.pt"}
PICTURES = {f"{name}.png" for name in ("drawdown", "equity", "exposure", "holdings", "worst_days")}
PRESET = """
num_envs: 16
num_groups: 4
group_size: 4
compile: false
episodes: 6
validation_fraction: 0.3
validation_episodes: 4
evaluations: 2
env: {episode_length: 12, features: [rsi_30], action: tilt}
"""
VERSION_1 = Path(__file__).parent / "settings_version_1.yaml"
SIZES = {"total-frames": 256, "num-steps": 8, "minibatches": 2, "hidden": 8}
OFF_POLICY = SIZES | {"minibatch-size": 32, "buffer-size": 512}
# The metric of each learner that no other has, or one of its kind.
LEARNERS = {
    "ppo": (SIZES | {"policy": "symbol"}, "clip_fraction"),
    "cppo": (SIZES, "cvar_nu"),
    "a2c": ({name: value for name, value in SIZES.items() if name != "minibatches"}, "policy_loss"),
    "dqn": (OFF_POLICY, "epsilon"),
    "sac": (OFF_POLICY, "temperature"),
    "td3": (OFF_POLICY, "td_loss"),
    "ddpg": (OFF_POLICY, "td_loss"),
    "grpo": ({"total-frames": 384, "minibatches": 2, "hidden": 8, "reward.steps": 0.5}, "share/steps"),
    "exact": ({"total-frames": 256, "num-steps": 8, "hidden": 8, "policy": "symbol"}, "update"),
}
BOOKS = ("--task", "crypto_lob", "--env.synthetic-hours", 2, "--env.episode-steps", 60, "--env.embargo", 60)
BOOKS += ("--no-compile", "--num-envs", 16, "--episodes", 6, "--validation-episodes", 4, "--evaluations", 2)


@pytest.fixture(autouse=True)
def empty_pictures(request, monkeypatch):
    """Write empty pictures, as to draw them takes a third of a run; the run of PPO by itself draws its own."""
    if not request.node.name.endswith("[ppo]"):
        monkeypatch.setattr(Figure, "savefig", lambda figure, path, **_: Path(path).touch())


@pytest.fixture(scope="module")
def run(place):
    """Run a training of two updates on the market of the place, with more words of the command line."""
    preset = place / "small.yaml"
    preset.write_text(PRESET)

    def trained(algorithm: str, *more: object, market: tuple = ()) -> int:
        own = [word for name, value in LEARNERS[algorithm][0].items() for word in (f"--learner.{name}", value)]
        words = market or ("--preset", preset, "--market", place / "market.parquet")
        if algorithm == "dqn":
            words = BOOKS
        if algorithm == "grpo":
            words = (*words, "--validation-fraction", 0)
        return cli.main(["train", *map(str, (*words, "--algorithm", algorithm, *own, *more))])

    return trained


def evaluated(folder, target, *more: str) -> dict:
    words = ["evaluate", "--checkpoint", str(folder), "--episodes", "6", "--agents", "hold", "--json", str(target)]
    assert cli.main([*words, *more]) == 0
    return told_in(target)


def told_in(path) -> dict:
    return json.loads(path.read_text())


def updates_in(folder) -> list[int]:
    return pd.read_csv(folder / "metrics.csv")["update"].tolist()


@pytest.mark.parametrize(
    "algorithm",
    [name if name in ("ppo", "exact", "grpo") else pytest.param(name, marks=pytest.mark.nightly) for name in LEARNERS],
)
def test_a_run_is_trained_resumed_and_evaluated(place, run, tmp_path, algorithm):
    folder, frames, whole = tmp_path / "run", "--learner.total-frames", LEARNERS[algorithm][0]["total-frames"]
    beside = ("--beside", place / "exact") if algorithm == "ppo" else ()
    assert run(algorithm, *beside, "--seed", 3, "--folder", folder) == 0
    files = {path.name for path in folder.iterdir()}
    assert files >= ALL_FILES and (algorithm == "dqn" or files >= PICTURES)
    log, document = pd.read_csv(folder / "metrics.csv"), told_in(folder / "metrics.json")
    state = read_checkpoint(folder)
    assert log["frames"].tolist() == [whole // 2, whole] and log[LEARNERS[algorithm][1]].notna().all()
    agents = document["evaluation"]["agents"]
    assert list(agents)[:2] == ["trained", "untrained"] and document["evaluation"]["num_episodes"] == 6
    assert document["settings"]["algorithm"] == algorithm and document["seed"] == state["config"]["seed"] == 3
    assert document["evaluation"]["seed"] == 3
    parts = [(verdict["benchmark"], verdict["part"], verdict["looks"]) for verdict in document["verdicts"]]
    reference, looks = ("hold" if algorithm == "dqn" else "buy_and_hold"), 0 if algorithm == "grpo" else 2
    own = [(reference, "validation", looks)] if looks else []
    assert parts == [(reference, "test", looks), ("untrained", "test", looks), *own]
    if algorithm != "grpo":
        assert state["best"]["score"] == log["validation_reward"].max()
    if algorithm == "dqn":
        # No hour of the test is trained on.
        assert [one["config"]["part"] for one in (state["scenario"], document["evaluation"])] == ["train", "test"]
    if algorithm == "ppo":
        assert list(agents) == ["trained", "untrained", "exact", *BASELINES]
        assert list(document["generalisation"]) == ["trained", "untrained", "exact", "buy_and_hold"]
        assert document["training_market"]["last_day"] < document["evaluation"]["market"]["first_day"]
    if algorithm == "exact":
        # Comparisons play the exact account.
        assert document["evaluation"]["config"]["whole_shares"] and not state["scenario"]["config"]["whole_shares"]
    again = evaluated(folder, tmp_path / "evaluated.json", "--seed", "3")["agents"]
    # The deflation depends on how many agents there are to choose among.
    for told in (agents["trained"], again["trained"]):
        for name in [name for name in told if name.startswith(("deflated", "minus", "excess"))]:
            del told[name]
    assert list(again) == ["trained", "hold"] and again["trained"] == agents["trained"]
    assert cli.main(["train", "--resume", str(folder), frames, str(whole * 3 // 2)]) == 0
    assert updates_in(folder) == [1, 2, 3] and pd.read_csv(folder / "metrics.csv")[:2].equals(log)
    own = yaml.safe_load((folder / "settings.yaml").read_text())
    assert (own["seed"], own["learner"]["total_frames"]) == (3, whole * 3 // 2)


def test_seeds_go_on_after_an_interruption_and_are_compared(run, tmp_path, monkeypatch, capsys):
    """All start from one policy; each is the run of its seed alone."""
    folder, alone, source, target = (tmp_path / name for name in ("a run", "alone", "source", "told.json"))
    assert run("ppo", "--folder", source) == 0
    more = ("--initial", source, "--symbols-per-path", 2, "--subsets-per-path", 3)
    show, shown = experiment.TrainingBar.show, []

    def interrupted(bar, metrics):
        show(bar, metrics)
        shown.append(metrics)
        if len(shown) == 3:
            os.kill(os.getpid(), signal.SIGINT)

    # A shell that starts the tests in the background makes them ignore the signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(experiment.TrainingBar, "show", interrupted)
            assert run("ppo", *more, "--seed", 4, "--seeds", 2, "--folder", folder) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert f"vecenv train --resume '{folder}'" in capsys.readouterr().out and updates_in(folder / "seed_5") == [1]
    assert {path.name for path in folder.iterdir()} == {"settings.yaml", "seed_4", "seed_5"}
    assert cli.main(["train", "--resume", str(folder)]) == 0
    told = capsys.readouterr().out
    assert "Seed      4\n" in told and "Seed      5\n" in told and "Over 2 seeds: excess" in told
    assert run("ppo", *more, "--seed", 5, "--folder", alone) == 0
    states = [read_checkpoint(path) for path in (folder / "seed_5", alone, folder / "seed_4")]
    for name in ("actor", "critic", "moments"):
        assert all(map(torch.equal, states[0][name], states[1][name]))
        assert name == "moments" or not all(map(torch.equal, states[0][name], states[2][name]))
    markets = [state["scenario"]["market"]["fingerprint"] for state in states]
    assert markets[0] == markets[1] != markets[2]
    logs = [pd.read_csv(path / "metrics.csv").drop(columns="samples_per_second") for path in (folder / "seed_5", alone)]
    pd.testing.assert_frame_equal(*logs, check_exact=True)
    document = told_in(folder / "metrics.json")
    agents = document["evaluation"]["agents"]
    assert list(agents)[:5] == ["trained_4", "trained_5", "ensemble", "untrained", "initial"]
    assert list(document["seeds"]["excess_log_return"]["by_seed"]) == ["4", "5"]
    judged = [(told["agent"], told["benchmark"], told["part"]) for told in document["verdicts"]]
    both, held = "the mean of 2 seeds", "buy_and_hold"
    test = [(agent, benchmark, "test") for agent in (both, "ensemble") for benchmark in (held, "initial")]
    assert judged == [*test, (both, held, "validation")] and told.count("Verdict   ") == 3
    again = evaluated(folder, target, "--seed", "4")
    assert list(again["agents"]) == ["trained_4", "trained_5", "ensemble", "hold"] and again["combine"] == "mean"
    assert [(one["word"], one["benchmark"], one["looks"]) for one in again["verdicts"]] == [
        ("unknown", None, 2), ("unknown", None, None),
    ]  # fmt: skip
    assert again["diversity"] == document["seeds"]["diversity"]
    returns = [told["ensemble"]["cumulative_return"] for told in (again["agents"], agents)]
    assert returns[0] == returns[1]


def test_an_ensemble_in_one_batch_leaves_runs_that_are_combined(run, tmp_path):
    folder = tmp_path / "run"
    assert run("ppo", "--ensemble", 2, "--seed", 4, "--folder", folder) == 0
    log = pd.read_csv(folder / "metrics.csv")
    bests = {seed: read_checkpoint(folder / f"seed_{seed}")["best"] for seed in (4, 5)}
    for seed, best in bests.items():
        assert best["score"] == pytest.approx(log[f"validation_reward.seed_{seed}"].max())
    evaluated(folder, tmp_path / "told.json", "--combine", "weighted", "--sharpe-temperature", "0.01")
    told = evaluated(folder, tmp_path / "told.json", "--combine", "select")["agents"]
    best = f"trained_{max(bests, key=lambda seed: bests[seed]['sharpe'])}"
    assert told["ensemble"]["cumulative_return"] == told[best]["cumulative_return"]
    assert cli.main(["train", "--resume", str(folder / "seed_5"), "--learner.total-frames", "384"]) == 0
    assert updates_in(folder / "seed_5") == [1, 2, 3]


def test_new_paths_are_drawn_while_a_run_goes_on(place, run, tmp_path, capsys, monkeypatch):
    fresh, seeds = experiment.FreshPaths, []
    monkeypatch.setattr(experiment, "FreshPaths", lambda own, *more: seeds.append(own.seed) or fresh(own, *more))
    market = ("--preset", place / "small.yaml", "--market", "random_walk", "--symbols", "A", "B", "--num-days", 120)
    more = ("--num-paths", 5, "--validation-fraction", 0, "--refresh-every", 1, "--folder", tmp_path)
    assert run("ppo", *more, "--seed", 3, market=market) == 0 and seeds == [3]
    assert "drawing new paths …" in capsys.readouterr().out and updates_in(tmp_path) == [1, 2]
    # Later rounds, of a resumed run too, have the tick of the first.
    market = read_checkpoint(tmp_path)["scenario"]["market"]
    assert resumed_settings(tmp_path).source.tick_size == market["tick_size"]


def test_python_writes_what_the_command_writes(place, run, tmp_path):
    assert run("ppo", "--seed", 3, "--folder", tmp_path / "command") == 0
    learner = {name.replace("-", "_"): value for name, value in LEARNERS["ppo"][0].items()}
    market, preset, folder = place / "market.parquet", place / "small.yaml", tmp_path / "python"
    settings = train_settings(preset=str(preset), market=str(market), learner=learner, seed=3, folder=folder)
    with plan(settings) as made:
        with pytest.raises(RuntimeError, match="an experiment is written after it is compared"):
            made.write()
        made.fit()
        with pytest.raises(RuntimeError, match="an experiment is shown before it is fitted"):
            made.show()
        assert made.compare().num_episodes == 6
        assert made.write()["folder"] == str(folder)
    told = [told_in(tmp_path / name / "metrics.json") for name in ("command", "python")]
    assert all(one.pop("training_seconds") > 0 for one in told) and told[0] == told[1]
    kept = [yaml.safe_load((tmp_path / name / "settings.yaml").read_text()) for name in ("command", "python")]
    assert kept[0] == kept[1]
    with pytest.raises(ValueError, match="--folder belongs to a new run: no effect with these settings"):
        train_settings(resume=folder, folder=folder)
    with plan(train_settings(resume=folder, learner={"total_frames": 384})) as made:
        made.fit()
        assert made.folder == folder and updates_in(folder) == [1, 2, 3]


def test_a_tracker_is_told_settings_updates_and_results_of_each_seed(run, tmp_path, monkeypatch):
    made: list[Memory] = []
    monkeypatch.setitem(trackers.MADE, "tensorboard", lambda told: made.append(Memory(told)) or made[-1])
    assert run("ppo", "--seeds", 2, "--seed", 4, "--tracker", "tensorboard", "--folder", tmp_path) == 0
    assert [memory.run.folder.name for memory in made] == ["seed_4", "seed_5"]
    for memory in made:
        *updates, (figures, verdicts), closed = memory.told
        assert [row["update"] for row in updates] == [1, 2] and closed == "closed"
        assert "trained_4/sharpe" in figures and verdicts[0].startswith("test: the mean of 2 seeds ")
        assert memory.run.settings["learner.hidden"] == "(8,)" and not memory.run.resumed
    # It goes on where nothing else is said.
    assert cli.main(["train", "--resume", str(tmp_path), "--learner.total-frames", "384"]) == 0
    assert len(made) == 4 and made[-1].run.resumed and made[-1].told[0]["update"] == 3


def test_a_run_goes_on_with_the_precision_that_it_began_with(run, tmp_path, capsys):
    assert run("ppo", "--precision", "bfloat16", "--folder", tmp_path) == 0
    resume = ["train", "--resume", str(tmp_path), "--learner.total-frames", "384"]
    assert cli.main([*resume, "--precision", "auto"]) == cli.main([*resume, "--precision=float32"]) == cli.BAD_INPUT
    assert capsys.readouterr().err.count("is a run with other learner.precision (bfloat16, not float32)") == 2
    assert cli.main(resume) == 0 and updates_in(tmp_path) == [1, 2, 3]
    written = yaml.safe_load((tmp_path / "settings.yaml").read_text())["learner"]["precision"]
    assert written == read_checkpoint(tmp_path)["config"]["precision"] == "bfloat16"


def test_a_run_of_version_1_goes_on_and_is_evaluated(place, tmp_path):
    """Its settings had those of all learners and markets, with or without an effect."""
    settings = settings_on(place, seed=3)
    folder = made_run(tmp_path / "run", settings)
    text = VERSION_1.read_text().replace("PLACE", str(place))
    (folder / "settings.yaml").write_text(text)
    assert resumed_settings(folder) == settings and len(yaml.safe_load(text)) > len(as_values(settings))
    assert cli.main(["train", "--resume", str(folder), "--learner.total-frames", "384", "--no-compile"]) == 0
    assert updates_in(folder) == [1, 2, 3]
    assert yaml.safe_load((folder / "settings.yaml").read_text())["learner"]["total_frames"] == 384
    (folder / "settings.yaml").write_text(text)
    agents = evaluated(folder, tmp_path / "told.json", "--seed", "3")["agents"]
    trained = told_in(folder / "metrics.json")["evaluation"]["agents"]["trained"]
    assert agents["trained"]["cumulative_return"] == trained["cumulative_return"]
