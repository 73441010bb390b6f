"""Settings without effect: known by their classes, refused by name, hidden by the help, reset if presets bring them."""

import re
from dataclasses import MISSING, fields, replace
from datetime import date
from operator import attrgetter
from pathlib import Path

import pytest

from vecenv.language.config import AnswerConfig, LanguageConfig
from vecenv.learn.grpo import GRPOConfig
from vecenv.learn.ppo import PPOConfig
from vecenv.tasks.commands import applicable, collect, play, replay, sft
from vecenv.tasks.commands.applicable import inapplicable, named_settings, refuse_inapplicable
from vecenv.tasks.commands.data import NewsSettings
from vecenv.tasks.commands.evaluate import EvaluateSettings
from vecenv.tasks.commands.market_settings import MarketSettings
from vecenv.tasks.commands.serve import ServeSettings
from vecenv.tasks.commands.train_settings import TrainSettings
from vecenv.tasks.signals.config import SignalsConfig
from vecenv.tasks.stock_trading.config import StockTradingConfig

DOCUMENTS = ("scores", "news", "score_delay", "market_close", "early_closes")
PLANTED, NEWS = ("planted_kind", "planted_strength"), ("news_coverage", "news_accuracy")
DAY = date(2020, 1, 1)
BOTH_DAYS = {"market": "a.csv", "train_end": DAY, "test_start": date(2020, 2, 1)}
RULES = StockTradingConfig()
TRAIN = TrainSettings(env=RULES)


def owned(**owners: str) -> dict[str, str]:
    """Owners by setting, given settings of one owner in one word each: ``a__b="owner"``."""
    return {name: owner for names, owner in owners.items() for name in names.split("__")}


UNREAD = dict.fromkeys(DOCUMENTS, "a task that reads scores, such as signals")
OF_FORM = owned(timezone__columns__clip__date_format="a market of data")
GENERATED = UNREAD | owned(context_market="a market of data") | OF_FORM
NO_NEWS = dict.fromkeys(NEWS, "the market of synthetic news")
NO_PLANT = dict.fromkeys(PLANTED, "the planted market")
NOT_NEURAL = owned(history__history_end__temperature="the neural market")
NO_REGIME = owned(regime="the neural and the synthetic market")
BY_PATHS = owned(embargo="a split by days")
NEURAL = GENERATED | NO_NEWS | NO_PLANT | {"history_end": "--history"} | BY_PATHS
OF_PATHS = ("num_paths", "num_days", "market_seed", "history", "history_end", "temperature", "regime", *PLANTED, *NEWS)
DATA = UNREAD | dict.fromkeys(OF_PATHS, "a generated market")
DATED = owned(test_fraction="a split without --train-end and --test-start")


def test_settings_of_a_market_that_have_no_effect():
    for given, expected in (
        ({}, NEURAL),
        ({"market": "a.safetensors"}, NEURAL),
        ({"history": "a.csv"}, NEURAL | dict.fromkeys(("history_end", *OF_FORM))),
        ({"market": "synthetic"}, GENERATED | NO_NEWS | NO_PLANT | NOT_NEURAL | BY_PATHS),
        ({"market": "random_walk"}, GENERATED | NO_NEWS | NO_PLANT | NOT_NEURAL | NO_REGIME | BY_PATHS),
        ({"market": "planted"}, GENERATED | NO_NEWS | NOT_NEURAL | NO_REGIME | BY_PATHS),
        ({"num_paths": 1}, NEURAL | {"embargo": None}),
        ({"market": "a.csv"}, DATA),
        ({"market": "a.csv", "train_end": DAY}, DATA | DATED),
        ({"train_end": DAY}, NEURAL | DATED | {"embargo": None}),
        (BOTH_DAYS, DATA | DATED | {"embargo": "a split without --train-end or --test-start"}),
    ):
        found = MarketSettings(**given).inapplicable()
        assert found == {name: owner for name, owner in expected.items() if owner is not None}


SIMULATED = {item.name: "a task on a market of bars" for item in fields(MarketSettings) if item.name != "device"}
LEARNERS = {name: f"--algorithm {name}" for name in ("ppo", "cppo", "a2c", "dqn", "sac", "td3", "ddpg", "exact")}
GROUPED = owned(num_groups__group_size__grpo="--algorithm grpo")
PLAIN = owned(
    subsets_per_path="--symbols-per-path",
    validation_episodes__evaluations__patience="a validation_fraction above 0",
    combine="several --seeds, or --ensemble",
    sharpe_temperature="--combine weighted",
    language="--algorithm grpo with --model",
)
UNSTACKED = owned(ensemble="a training by --algorithm ppo or cppo")
PPO = PLAIN | GROUPED | LEARNERS | {"ppo": None}
GRPO = PLAIN | UNSTACKED | LEARNERS | owned(num_envs="--algorithm ppo, cppo, a2c, dqn, sac, td3, ddpg or exact")
ALONE = owned(initial__beside__symbols_per_path="a training without --model")
MODEL = GRPO | ALONE | owned(grpo__seeds="--algorithm grpo without --model") | {"language": None}
STACK = owned(seeds__initial__symbols_per_path="a training without --ensemble")
STACK |= dict.fromkeys(("combine", "validation_episodes", "evaluations", "patience"))
BOOKS = SIMULATED | owned(refresh_every__symbols_per_path__subsets_per_path="a task on a market of bars")
RISKY = SignalsConfig(risk_strength=0.1, risk_form="trajectory")
FORM = {"env.risk_form": "--algorithm cppo with --cppo.weigh-risk where it is trajectory"}
TO_MARKET = owned(context_market__scores__news__score_delay__market_close__early_closes="a market of data")
NO_MODEL, NO_WEIGHTS = {"language": "--model"}, {"sharpe_temperature": "--combine weighted"}
NO_CHECKPOINT, UNPARTED = owned(combine="--checkpoint"), owned(part="a market of data")
OF_SIGNALS = dict.fromkeys(DOCUMENTS) | NO_WEIGHTS | NO_CHECKPOINT
UNSPLIT = dict.fromkeys(("train_end", "test_start", "test_fraction", "embargo"), "commands that split the days")
TOOLLESS = owned(validation_fraction="the splits train and validation")
SIGNALS = {"task": "signals", "env": RISKY}


def test_what_a_command_adds_to_those_of_its_market():
    """None where a setting has an effect that it lacks in others."""
    for kind, given, own in (
        (TrainSettings, {}, PPO),
        (TrainSettings, {"algorithm": "cppo"}, PPO | LEARNERS | {"cppo": None}),
        (TrainSettings, {"algorithm": "sac"}, PPO | LEARNERS | UNSTACKED | {"sac": None}),
        (TrainSettings, {"algorithm": "grpo"}, GRPO),
        (TrainSettings, {"algorithm": "grpo", "model": "m"}, MODEL),
        (TrainSettings, {"market": "a.csv"}, PPO | owned(refresh_every="a generated market")),
        (TrainSettings, {"symbols_per_path": 2}, PPO | {"subsets_per_path": None}),
        (TrainSettings, {"seeds": 2}, PPO | {"combine": None}),
        (TrainSettings, {"seeds": 2, "combine": "weighted"}, PPO | {"combine": None, "sharpe_temperature": None}),
        (TrainSettings, {"ensemble": 2, "validation_fraction": 0.1}, PPO | STACK),
        (TrainSettings, {"resume": Path("run")}, PPO | owned(preset__task_preset__folder="a new run")),
        (TrainSettings, {"task": "execution"}, BOOKS | PPO),
        (TrainSettings, SIGNALS, PPO | TO_MARKET | FORM),
        (EvaluateSettings, {}, UNPARTED | NO_MODEL | NO_WEIGHTS | NO_CHECKPOINT),
        (EvaluateSettings, {"checkpoint": (Path("a"),), "combine": "weighted"}, UNPARTED | NO_MODEL),
        (EvaluateSettings, {"model": "m"}, UNPARTED | NO_WEIGHTS | NO_CHECKPOINT),
        (EvaluateSettings, {"task": "execution"}, SIMULATED | UNPARTED | NO_MODEL | NO_WEIGHTS | NO_CHECKPOINT),
        (EvaluateSettings, SIGNALS | {"market": "a.csv", "model": "m"}, OF_SIGNALS),
        (play.PlaySettings, {"task": "single_stock"}, UNSPLIT),
        (play.PlaySettings, {"task": "execution"}, SIMULATED),
        (collect.CollectSettings, {"task": "single_stock", "market": "a.csv"}, {}),
        (ServeSettings, {"task": "single_stock", "splits": ("test",)}, TOOLLESS),
        (ServeSettings, {"task": "single_stock", "splits": ("test", "train"), "num_paths": 1}, {}),
        (ServeSettings, {"task": "single_stock", **BOTH_DAYS}, {"embargo": None}),
        (ServeSettings, BOTH_DAYS | {"splits": ("test",)}, TOOLLESS),
        (ServeSettings, {"task": "execution"}, SIMULATED | owned(validation_fraction="a task on a market of bars")),
    ):
        settings = kind(**{"env": RULES} | given)
        market = MarketSettings(**{item.name: getattr(settings, item.name) for item in fields(MarketSettings)})
        expected = market.inapplicable() | own
        assert settings.inapplicable() == {name: owner for name, owner in expected.items() if owner is not None}
    # Other commands, and risk in trajectories.
    assert sft.SftSettings(data=()).inapplicable() == {"lora_rank": "a model that is loaded"}
    assert sft.SftSettings(data=(), model="m").inapplicable() == {"tiny": "--model tiny"}
    news = NewsSettings(Path("a"), Path("b"))
    assert news.inapplicable() == dict.fromkeys(("batch_size", "device"), "a model as --scorer")
    assert replace(news, scorer="m").inapplicable() == {}
    assert AnswerConfig().inapplicable() == dict.fromkeys(("tool_form", "turns"), "tools")
    alone = LanguageConfig(tools=("all",), groups=1, variant="gigpo")
    assert alone.inapplicable().keys() == {"refills", "positive_share"}
    assert LanguageConfig().inapplicable()["others"] == "a number of groups that the model plays"
    cppo = replace(TRAIN.cppo, weigh_risk=True)
    needs = {"cppo.weigh_risk": "--env.risk-strength above 0 and --env.risk-form trajectory"}
    for rules, settings, expected in (
        (RISKY, cppo, {}),
        (SignalsConfig(), cppo, needs),
        (replace(RISKY, risk_form="reward"), cppo, needs),
        (SignalsConfig(), TRAIN.cppo, {}),
        (RISKY, TRAIN.cppo, FORM),
        (RULES, cppo, {}),
    ):
        found = TrainSettings(env=rules, algorithm="cppo", cppo=settings, task="signals").inapplicable()
        assert {name: owner for name, owner in found.items() if "." in name} == expected


EPISODES = {"seed": 0, "episodes": 256}
SHARED = EPISODES | {"combine": "mean", "sharpe_temperature": 1.0, "task": "stock_trading"}
MARKET = {"market": "neural", "test_fraction": 0.2, "embargo": 20, "score_delay": 1, "num_paths": 32, "market_seed": 0}
MARKET |= {"market_close": "16:00 America/New_York", "temperature": 1.0, "device": "auto"}
VALIDATED = {"validation_fraction": 0.0, "validation_episodes": 64, "evaluations": 25, "subsets_per_path": 16}
ROWS = {"algorithm": "ppo", "num_envs": 2048, "num_groups": 128, "group_size": 16, "seeds": 1, "compile": True}
SERVED = {"host": "127.0.0.1", "port": 8000, "splits": ("train", "validation", "test"), "validation_fraction": 0.2}
CHATS = {"out": Path("conversations.jsonl"), "agents": ("rule_based", "oracle"), "conversation": "episode"}


def test_defaults_that_the_pages_tell():
    for kind, expected in (
        (MarketSettings, MARKET),
        (TrainSettings, SHARED | ROWS | VALIDATED),
        (EvaluateSettings, SHARED | {"agents": ("all",)}),
        (collect.CollectSettings, EPISODES | CHATS | {"min_grade": 0.0}),
        (play.PlaySettings, {"seed": 0}),
        (ServeSettings, SERVED | {"num_tasks": 1000, "seed": 0, "compile": True, "web": False}),
        (sft.SftSettings, {"seed": 0, "device": "auto", "lora_rank": 0}),
        (replay.ReplaySettings, {"device": "cpu"}),
        (NewsSettings, {"scorer": "lexicon", "batch_size": 32, "device": "auto"}),
    ):
        own = {item.name: item.default for item in fields(kind) if item.name in kind.__annotations__}
        assert {name: value for name, value in own.items() if value not in (MISSING, None, ())} == expected


def test_all_names_are_settings_and_the_help_tells_those_that_it_does_not_list():
    for settings in (TRAIN, replace(TRAIN, algorithm="grpo", model="m"), replace(TRAIN, resume=Path("run"))):
        names = inapplicable(settings)
        for name in names:
            attrgetter(name)(settings)
        assert names["env.gate_threshold"] == "a gate"
    assert inapplicable(TRAIN)["grpo"] == "--algorithm grpo" and "grpo.refills" not in inapplicable(TRAIN)
    assert inapplicable(replace(TRAIN, algorithm="grpo"))["grpo.refills"] == "variant dapo"
    before, *told = applicable.told_inapplicable(EvaluateSettings(env=RULES)).splitlines()
    assert before == "Not listed, as they have no effect here; to see them, give their requirement beside --help:"
    of_scores = "--scores, --news, --score-delay, --market-close, --early-closes"
    assert told[1] == f"  of a task that reads scores, such as signals: {of_scores}"
    assert told[6:8] == ["  of --model: --language.*", "  of --checkpoint: --combine"]
    assert "  of a gate: --env.gate-threshold" in told and applicable.told_inapplicable(object()) == ""


def test_a_setting_of_another_mode_is_refused_by_name_with_its_owner():
    """Even at its default: whoever gives it expects something of it."""
    grpo = {"algorithm": "grpo"}
    for changes, words, told in (
        ({}, "--grpo.variant grpo", "--grpo.variant belongs to --algorithm grpo"),
        ({}, "--seed 1 --group-size 4 --num-groups 4", "--num-groups, --group-size belong to --algorithm grpo"),
        ({}, "--grpo.no-anneal --num_groups=2", "--num-groups, --grpo.anneal belong to --algorithm grpo"),
        ({}, "--env.gate_threshold=9", "--env.gate-threshold belongs to a gate"),
        # What belongs to something else is told next time.
        ({}, "--sac.gamma 1 --context-market a.csv", "--context-market belongs to a market of data"),
        (grpo, "--ppo.clip 0.2 --grpo.gamma 1", "--ppo.clip belongs to --algorithm ppo"),
        (grpo, "--grpo.refills 4", "--grpo.refills belongs to variant dapo"),
    ):
        with pytest.raises(ValueError, match=f"^{re.escape(f'{told}: no effect with these settings')}"):
            refuse_inapplicable(replace(TRAIN, **changes), words.split())
    # A name is found however it is written; settings in effect are taken.
    names = dict.fromkeys(("a.long_name", "a.other", "flag", "b"))
    words = ["--a.long-name", "-0.1", "--no-flag", "--c", "--b", "x", "y"]
    assert named_settings(names, words) == ["a.long_name", "flag", "b"]
    assert named_settings(names, ["--a.long_name=3", "--bb", "b", "--help"]) == ["a.long_name"]
    assert named_settings({}, words) == named_settings(names, ["--a.no_other"])[1:] == []
    words = "--ppo.clip 0.3 --num-envs 8 --refresh-every 2 --temperature 0.9 --env.tilt-gain 2 --help"
    refuse_inapplicable(replace(TRAIN, env=replace(RULES, action="tilt")), words.split())
    refuse_inapplicable(replace(TRAIN, algorithm="grpo", grpo=GRPOConfig(variant="dapo")), ["--grpo.refills", "2"])


def test_a_preset_may_bring_settings_of_other_modes(tmp_path):
    preset = tmp_path / "both.yaml"
    preset.write_text(
        "num_envs: 8\nnum_groups: 3\nrefresh_every: 5\nregime: bull\nnum_paths: 4\nppo: {gamma: 0.5}\n"
        "grpo: {variant: dapo, step_gamma: 0.5}\nlanguage: {turns: 2}\n"
    )
    given = TrainSettings.defaults(["--preset", str(preset)])
    ppo = applicable.in_effect(given)
    assert (ppo.num_envs, ppo.num_groups, ppo.num_paths, ppo.regime) == (8, 128, 4, "bull")
    data = applicable.in_effect(replace(given, market="a.csv"))
    assert (data.num_paths, data.regime, data.refresh_every) == (32, None, None)
    grpo = applicable.in_effect(replace(given, algorithm="grpo", group_size=5))
    assert (grpo.num_envs, grpo.num_groups, grpo.group_size) == (2048, 3, 5)
    assert grpo.grpo.variant == "dapo" and grpo.ppo == PPOConfig(num_steps=16, gamma=0.5) and grpo.language.turns == 2
    assert applicable.in_effect(TRAIN) == TRAIN
