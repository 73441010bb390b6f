"""Settings given for another mode are refused by name, hidden by the help, and without effect in files."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import get_type_hints

import pytest

from tests.pages import shown_commands
from vecenv.system.preset_files import as_values
from vecenv.tasks.commands import cli
from vecenv.tasks.commands.applicable import inapplicable, named_settings
from vecenv.tasks.commands.market_settings import MarketSettings
from vecenv.tasks.commands.train import TrainSettings
from vecenv.tasks.stock_trading.config import StockTradingConfig

GRPO = ("--algorithm", "grpo")
MODEL = (*GRPO, "--model", "m", "--task", "single_stock")
POINTS = {point.name: point for point in (*cli.COMMANDS, *entry_points(group=cli.GROUP))}


def echo_of(command: Callable) -> Callable:
    """Return a command with the settings of another that only returns them."""

    def echo(settings):
        return as_values(settings)

    echo.__annotations__ = get_type_hints(command, include_extras=True)
    return echo


@pytest.fixture(autouse=True)
def _no_work(monkeypatch):
    """Let the commands only return their settings."""
    monkeypatch.setattr(cli, "COMMANDS", [EntryPoint(name, f"{__name__}:ECHOES.{name}", cli.GROUP) for name in POINTS])
    monkeypatch.setattr(cli, "entry_points", lambda group: [])


class _Echoes:
    """The echo of a command, by its name."""

    def __getattr__(self, name: str) -> Callable:
        return echo_of(POINTS[name].load())


ECHOES = _Echoes()


def told(capsys, *words: str) -> str:
    """What the command line says of words that it refuses."""
    assert cli.main(list(words)) == cli.BAD_INPUT
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


def settings_of(tmp_path, *words: str) -> dict:
    """The settings that a command is called with."""
    assert cli.main([*words, "--json", str(tmp_path / "settings.json")]) == 0
    return json.loads((tmp_path / "settings.json").read_text())


def help_of(capsys, *words: str) -> tuple[set[str], str]:
    """The options that a help lists, and its text before them."""
    assert cli.main([*words, "--help"]) == 0
    before, _, options = capsys.readouterr().out.partition("-h, --help  ")
    # The frame depends on what the output can show.
    listed = [line.strip(" │|") for line in options.splitlines()]
    return {name for line in listed if line.startswith("--") for name in re.findall(r"--[a-z][\w.-]*", line)}, before


@pytest.mark.parametrize(
    ("words", "named", "owner"),
    [
        (("train", "--grpo.variant", "grpo"), "--grpo.variant belongs", "--algorithm grpo"),
        (("train", "--grpo.reward.invalid=1"), "--grpo.reward.invalid belongs", "--algorithm grpo"),
        (("train", "--grpo.no-anneal"), "--grpo.anneal belongs", "--algorithm grpo"),
        (("train", "--num-groups", "4", "--group-size", "4"), "--num-groups, --group-size belong", "--algorithm grpo"),
        (("train", "--language.turns", "2"), "--language.turns belongs", "--algorithm grpo with --model"),
        (("train", *GRPO, "--ppo.clip", "0.2"), "--ppo.clip belongs", "--algorithm ppo"),
        (("train", *GRPO, "--num_envs", "2048"), "--num-envs belongs", "--algorithm ppo"),
        (("train", *GRPO, "--language.groups", "1"), "--language.groups belongs", "--algorithm grpo with --model"),
        (("train", *GRPO, "--grpo.refills", "4"), "--grpo.refills belongs", "variant dapo"),
        (("train", *GRPO, "--grpo.variant", "dapo", "--grpo.step-gamma", "1"), "--grpo.step-gamma", "variant gigpo"),
        (("train", *MODEL, "--grpo.variant", "dapo"), "--grpo.variant belongs", "--algorithm grpo without --model"),
        (("train", *MODEL, "--ppo.gamma", "1"), "--ppo.gamma belongs", "--algorithm ppo"),
        (("train", *MODEL, "--language.turns", "2"), "--language.turns belongs", "tools"),
        (("train", *MODEL, "--language.others", "hold"), "--language.others", "a number of groups"),
        (("train", "--preset", "quick", *GRPO, "--ppo.gamma", "1"), "--ppo.gamma belongs", "--algorithm ppo"),
        (("train", *MODEL, "--initial", "run"), "--initial belongs", "a training without --model"),
        (("train", *MODEL, "--symbols-per-path", "2"), "--symbols-per-path belongs", "a training without --model"),
        (("train", "--subsets-per-path", "16"), "--subsets-per-path belongs", "--symbols-per-path"),
        (("train", "--market", "a.csv", "--refresh-every", "2"), "--refresh-every belongs", "a generated market"),
        (("train", "--market", "a.csv", "--num-paths", "32"), "--num-paths belongs", "a generated market"),
        (("evaluate", "--market", "a.csv", "--market-seed", "1"), "--market-seed belongs", "a generated market"),
        (("collect", "--market", "a.csv", "--num-days", "9"), "--num-days belongs", "a generated market"),
        (("play", "--market", "a.csv", "--regime", "bull"), "--regime belongs", "a generated market"),
        (("serve", "--market", "a.csv", "--history", "b.csv"), "--history belongs", "a generated market"),
        (("train", "--market", "synthetic", "--temperature", "1"), "--temperature belongs", "the neural market"),
        (("train", "--market", "random_walk", "--regime", "bull"), "--regime belongs", "neural and the synthetic"),
        (("train", "--market", "planted", "--regime", "bull"), "--regime belongs", "neural and the synthetic"),
        (("train", "--planted-kind", "momentum"), "--planted-kind belongs", "the planted market"),
        (("play", "--market", "synthetic", "--planted-strength", "0"), "--planted-strength", "the planted market"),
        (("evaluate", "--market", "a.csv", "--planted-kind", "signal"), "--planted-kind", "a generated market"),
        (("train", "--context-market", "vix.csv"), "--context-market belongs", "a market of data"),
        (("train", "--history-end", "2020-01-01"), "--history-end belongs", "--history"),
        (("train", "--embargo", "5"), "--embargo belongs", "a split by days"),
        (("train", "--test-start", "2020-01-01", "--test-fraction", "0.2"), "--test-fraction belongs", "a split"),
        (("play", "--train-end", "2020-01-01"), "--train-end belongs", "commands that split the days"),
        (("evaluate", "--language.temperature", "1"), "--language.temperature belongs", "--model"),
        (("evaluate", "--task", "portfolio", "--language.thinking"), "--language.thinking belongs", "--model"),
        (("serve", "--text.turns", "4"), "--text.turns belongs", "tools"),
        (("serve", "--splits", "test", "--validation-fraction", "0.2"), "--validation-fraction", "the splits train"),
        (("sft", "--data", "a", "--lora-rank", "4"), "--lora-rank belongs", "a model that is loaded"),
        (("sft", "--data", "a", "--model", "m", "--tiny.layers", "2"), "--tiny.layers belongs", "--model tiny"),
        (("train", "--env.gate-threshold", "9"), "--env.gate-threshold belongs", "a gate"),
        (("train", "--env.borrow-rate", "0"), "--env.borrow-rate belongs", "shorting"),
        (("train", "--task", "curriculum", "--env.nearest", "3"), "--env.nearest belongs", "scheduler adaptive"),
    ],
)
def test_a_setting_of_another_mode_is_refused_by_name_with_its_owner(capsys, words, named, owner):
    """Even at its default: whoever gives it expects something of it."""
    error = told(capsys, *words)
    assert error.startswith(f"vecenv {words[0]}: error: ") and error.count("\n") == 1
    assert named in error and re.search(rf"belongs? to .*{re.escape(owner)}", error), error


@pytest.mark.parametrize(
    "words",
    [
        ("train", "--ppo.clip", "0.3", "--num-envs", "8", "--refresh-every", "2", "--temperature", "0.9"),
        ("train", *GRPO, "--grpo.variant", "dapo", "--grpo.refills", "2", "--num-groups", "4"),
        ("train", "--initial", "run", "--symbols-per-path", "5", "--subsets-per-path", "2"),
        ("train", *MODEL, "--language.tools", "all", "--language.turns", "2", "--group-size", "4"),
        ("train", "--market", "a.csv", "--context-market", "vix.csv", "--embargo", "5", "--test-fraction", "0.3"),
        ("train", "--env.gate", "vix", "--env.gate-threshold", "9", "--env.shorting", "--env.borrow-rate", "0.1"),
        ("train", "--task", "curriculum", "--env.scheduler", "adaptive", "--env.nearest", "2"),
        ("evaluate", "--task", "portfolio", "--model", "m", "--language.temperature", "0"),
        ("serve", "--text.tools", "all", "--text.turns", "2", "--validation-fraction", "0.3"),
        ("serve", "--market", "a.csv", "--train-end", "2020-01-01", "--test-start", "2020-06-01", "--embargo", "5"),
        ("sft", "--data", "a", "--tiny.layers", "1"),
        ("sft", "--data", "a", "--model", "m", "--lora-rank", "4"),
    ],
)
def test_settings_of_the_chosen_mode_are_taken(tmp_path, words):
    settings_of(tmp_path, *words)


@pytest.mark.assembly
def test_a_preset_may_bring_settings_of_other_modes(tmp_path, capsys):
    """One file serves several modes: what belongs to the others has no effect."""
    preset = tmp_path / "both.yaml"
    preset.write_text(
        "num_envs: 8\nnum_groups: 3\nrefresh_every: 5\nregime: bull\nnum_paths: 4\nppo: {gamma: 0.5}\n"
        "grpo: {variant: dapo, step_gamma: 0.5}\nlanguage: {turns: 2}\n"
    )
    ppo = settings_of(tmp_path, "train", "--preset", str(preset))
    assert (ppo["num_envs"], ppo["num_groups"], ppo["num_paths"], ppo["regime"]) == (8, 128, 4, "bull")
    data = settings_of(tmp_path, "train", "--preset", str(preset), "--market", "a.csv")
    assert (data["num_paths"], data["regime"], data["refresh_every"]) == (32, None, None)
    grpo = settings_of(tmp_path, "train", "--preset", str(preset), *GRPO, "--group-size", "5")
    assert (grpo["num_envs"], grpo["num_groups"], grpo["group_size"]) == (2048, 3, 5)
    assert grpo["grpo"]["variant"] == "dapo" and grpo["ppo"]["gamma"] == 0.5


@pytest.mark.assembly
def test_help_lists_what_applies_and_names_the_rest(tmp_path, capsys):
    options, before = help_of(capsys, "train")
    assert {"--ppo.clip", "--num-envs", "--algorithm", "--model", "--temperature", "--env.tilt-gain"} <= options
    assert not {"--num-groups", "--group-size", "--context-market", "--env.gate-threshold", "--env.hmax"} & options
    assert not [name for name in options if name.startswith(("--grpo", "--language"))]
    assert "of --algorithm grpo: --num-groups, --group-size, --grpo.*\n" in before
    assert "of --algorithm grpo with --model: --language.*\n" in before and "beside --help" in before

    options, before = help_of(capsys, "train", *GRPO)
    assert {"--grpo.variant", "--grpo.reward.invalid", "--num-groups", "--env.tilt-gain"} <= options
    assert not [name for name in options if name.startswith(("--ppo", "--language", "--num-envs", "--grpo.refills"))]
    assert "of --algorithm ppo: --ppo.*\n" in before and "of --algorithm exact: --exact.*\n" in before

    preset = tmp_path / "preset.yaml"
    preset.write_text("algorithm: grpo\nmodel: m\ntask: single_stock\n")
    for words in (MODEL, ("--preset", str(preset))):
        options, before = help_of(capsys, "train", *words)
        assert {"--language.variant", "--language.answer-tokens", "--language.reward.steps"} <= options
        assert not [name for name in options if name.startswith(("--ppo", "--grpo"))]
        assert "of --algorithm grpo without --model: --grpo.*, --seeds\n" in before


@pytest.mark.assembly
def test_help_of_the_other_commands_lists_what_applies(capsys):
    data, _ = help_of(capsys, "evaluate", "--market", "a.csv")
    assert "--context-market" in data and not {"--num-paths", "--temperature", "--language.turns"} & data
    assert "--language.temperature" in help_of(capsys, "evaluate", "--model", "m", "--task", "portfolio")[0]
    assert "--tiny.layers" in help_of(capsys, "sft")[0] and "--lora-rank" not in help_of(capsys, "sft")[0]
    loaded = help_of(capsys, "sft", "--model", "m")[0]
    assert "--lora-rank" in loaded and "--data" in loaded and "--tiny.layers" not in loaded
    assert "--train-end" not in help_of(capsys, "play")[0] and "--train-end" in help_of(capsys, "collect")[0]


@pytest.mark.assembly
def test_help_is_given_beside_words_that_are_refused(capsys):
    assert "--ppo.clip" in help_of(capsys, "train", "--grpo.refills", "2")[0]
    assert "--ppo.clip" in help_of(capsys, "train", "--num-envs", "many")[0]


@pytest.mark.assembly
def test_a_resumed_run_goes_on_under_its_own_settings(tmp_path, capsys):
    run = tmp_path / "run"
    run.mkdir()
    (run / "settings.yaml").write_text("task: portfolio\nalgorithm: grpo\nnum_groups: 3\nseed: 4\n")
    resumed = settings_of(tmp_path, "train", "--resume", str(run), "--grpo.total-frames", "9")
    assert (resumed["task"], resumed["seed"], resumed["num_groups"]) == ("portfolio", 4, 3)
    for words in (("--preset", "quick"), ("--task-preset", "planted"), ("--folder", "elsewhere")):
        assert f"{words[0]} belongs to a new run" in told(capsys, "train", "--resume", str(run), *words)
    assert "--ppo.gamma belongs to --algorithm ppo" in told(capsys, "train", "--resume", str(run), "--ppo.gamma", "1")
    error = told(capsys, "train", "--resume", str(run), "--task", "single_stock")
    assert "run is a run of the task 'portfolio', not of 'single_stock'" in error


def test_what_is_inapplicable_has_a_default_and_is_a_setting():
    markets = ("neural", "synthetic", "planted", "random_walk", "a.csv", "a.safetensors")
    base = [TrainSettings(env=StockTradingConfig(), market=market) for market in markets]
    modes = [{}, {"algorithm": "grpo"}, {"algorithm": "grpo", "model": "m"}, {"resume": Path("run")}]
    for settings in (replace(one, **mode) for one in base for mode in modes):
        for name in inapplicable(settings):
            value = settings
            for part in name.split("."):
                value = getattr(value, part)
    assert "num_paths" not in MarketSettings().inapplicable()


def test_a_name_is_found_however_it_is_written():
    names = dict.fromkeys(("a.long_name", "a.other", "flag", "b"))
    words = ["--a.long-name", "-0.1", "--no-flag", "--c", "--b", "x", "y"]
    assert named_settings(names, words) == ["a.long_name", "flag", "b"]
    assert named_settings(names, ["--a.long_name=3", "--bb", "b", "--help"]) == ["a.long_name"]


def commands_of_the_pages() -> list[list[str]]:
    """Return the words after ``vecenv`` of every command line in the pages."""
    return [shlex.split(command)[1:] for command in shown_commands() if command.startswith("vecenv ")]


@pytest.mark.assembly
def test_every_command_of_the_pages_is_taken(tmp_path, monkeypatch, capsys):
    from vecenv.tasks.commands.evaluate import EvaluateSettings

    # There is no such run here.
    monkeypatch.setattr(EvaluateSettings, "_trained", classmethod(lambda cls, place: cls(env=StockTradingConfig())))
    commands = commands_of_the_pages()
    commands += [["train", "--preset", name, "--market", "a.parquet"] for name in ("dow30", "nifty", "quick", "tiers")]
    assert len(commands) > 25 and {"train", "evaluate", "collect", "sft", "play", "serve"} <= {c[0] for c in commands}
    for words in commands:
        assert cli.main(words) == 0, (words, capsys.readouterr())
