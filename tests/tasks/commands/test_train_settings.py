"""Defaults of ``vecenv train``: presets, those of a run to resume, and files that do not fit."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from vecenv.market.tape import MarketTape
from vecenv.tasks.commands.train_settings import TrainSettings


def test_presets_win_over_defaults_and_rules_of_a_task_over_those_of_a_training(tmp_path):
    train, task = tmp_path / "train.yaml", tmp_path / "task.yaml"
    train.write_text("seed: 4\nnum_envs: 8\nenv: {hmax: 7, commission: 1e-3, reward_scale: 1}\n")
    task.write_text("hmax: 5\nreward_scale: 1e-2\n")
    settings = TrainSettings.defaults(
        ["--preset", str(train), "--task-preset", str(task), "--num-envs", "16", "--help"]
    )
    assert (settings.seed, settings.num_envs, settings.episodes) == (4, 8, 256)
    assert (settings.env.hmax, settings.env.commission, settings.env.reward_scale) == (5, 1e-3, 1e-2)
    assert settings.preset is settings.task_preset is None


def test_what_a_preset_sets_for_ppo_holds_for_cvar_ppo_unless_it_sets_it_there(tmp_path):
    preset = tmp_path / "both.yaml"
    preset.write_text("ppo: {gamma: 0.5, hidden: [4]}\ncppo: {hidden: [5], beta: 7}\n")
    settings = TrainSettings.defaults(["--preset", str(preset)])
    assert (settings.cppo.gamma, settings.cppo.hidden, settings.cppo.beta) == (0.5, (5,), 7.0)
    assert settings.ppo.hidden == (4,)
    shipped = TrainSettings.defaults([])
    assert shipped.cppo.policy == shipped.ppo.policy == "symbol"
    assert shipped.cppo.total_frames == shipped.ppo.total_frames == 2_500_000


@pytest.mark.parametrize(
    ("words", "market", "policy"),
    [
        ("", "neural", "symbol"),
        ("--market a.csv", "neural", "symbol"),
        ("--task execution", "neural", "flat"),
        ("--task news_signals", "news", "flat"),
        ("--task portfolio", "neural", "flat"),
        ("--model m --task single_stock", "neural", "flat"),
        ("--model m", "neural", "symbol"),
    ],
)
def test_tasks_have_presets_and_markets_of_their_own(words, market, policy):
    settings = TrainSettings.defaults(words.split())
    assert (settings.market, settings.ppo.policy) == (market, policy)


def test_a_resumed_run_goes_on_under_its_own_settings(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "settings.yaml").write_text("task: portfolio\nalgorithm: grpo\nnum_groups: 3\nseed: 4\n")
    words = ["--resume", str(run), "--task-preset", "nothing", "--preset", "nothing"]
    resumed = TrainSettings.defaults(words)
    assert (resumed.task, resumed.algorithm, resumed.seed, resumed.num_groups) == ("portfolio", "grpo", 4, 3)
    assert resumed.env.symbols and TrainSettings.defaults([*words, "--task", "portfolio"]) == resumed
    with pytest.raises(ValueError, match=re.escape(f"{run} is a run of the task 'portfolio', not of 'single_stock'")):
        TrainSettings.defaults([*words, "--task", "single_stock"])


@pytest.mark.parametrize(
    ("words", "text", "told"),
    [
        ("--preset nothing", "", "unknown train preset 'nothing'; there are agent_market, "),
        ("--task-preset nothing", "", "unknown task preset 'nothing'; there are "),
        ("--preset FILE", "env: {comission: 0.1}", "FILE: env: unknown settings comission; known are "),
        ("--preset FILE", "num_envs: many", "FILE: num_envs: 'many' is not of the type int"),
        ("--preset FILE", "resume: run", "FILE: unknown settings resume; known are "),
        ("--preset FILE", "env: {commission: 2}", "FILE: env: commission must be in [0, 1), got 2"),
        ("--preset FILE", "ppo: 3", "FILE: ppo: settings by name are needed, got 3"),
        ("--task-preset FILE", "hmax: 0", "FILE: hmax must be positive"),
        ("--task nothing", "", "unknown task 'nothing'; installed tasks: "),
        ("--resume nowhere", "", "nowhere: not the folder of a run, it has no settings.yaml"),
    ],
)
def test_what_does_not_fit_is_named_with_its_file(tmp_path, words, text, told):
    file = tmp_path / "own.yaml"
    file.write_text(text)
    with pytest.raises(ValueError, match=re.escape(told.replace("FILE", str(file)))):
        TrainSettings.defaults([str(file) if word == "FILE" else word for word in words.split()])


def test_paths_for_training_are_those_without_test_and_validation():
    settings = replace(TrainSettings.defaults([]), num_paths=12, test_fraction=0.25, validation_fraction=0.3)
    assert settings.num_training_paths() == 6 and replace(settings, validation_fraction=0.0).num_training_paths() == 9
    assert replace(settings, num_paths=2).num_training_paths() == 1
    assert replace(settings, validation_fraction=0.0).validation(MarketTape) is None
