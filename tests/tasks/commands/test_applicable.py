"""Settings without effect: not there in the chosen kinds, refused by name, and left out where presets bring them."""

import re
from dataclasses import MISSING, fields, replace
from pathlib import Path

import pytest

from tests.tasks.commands.small_runs import settings_of
from vecenv.distributed.settings import ActorSettings
from vecenv.language.config import AnswerConfig, LanguageConfig
from vecenv.learn.grpo import GRPOConfig
from vecenv.system.preset_files import option_names
from vecenv.tasks.commands import collect, play, replay, sft
from vecenv.tasks.commands.data import NewsSettings
from vecenv.tasks.commands.evaluate import EvaluateSettings
from vecenv.tasks.commands.serve import HostSettings, ServeSettings, ValidationSplit
from vecenv.tasks.experiment import kinds, markets, train_settings
from vecenv.tasks.experiment.options import given_options, inapplicable, refuse_inapplicable
from vecenv.tasks.experiment.settings import TrainSettings
from vecenv.worldmodel.commands.settings import GenerateSettings

TRAIN, TWO = settings_of(), settings_of(seeds=2)


def test_an_option_of_another_kind_is_refused_by_name_with_its_owner():
    """Even at its default: whoever gives it expects something of it."""
    split = "a command that splits a market of bars"
    documents = "a task that reads scores, such as signals, on a market of data"
    for kind, words, told in (
        (
            TrainSettings,
            "--seed 1 --group-size=4 --num_groups 4",
            "--group-size, --num-groups belong to a learner that",
        ),
        (
            TrainSettings,
            "--algorithm grpo --num-envs 8",
            "--num-envs belongs to a learner that does not compare groups",
        ),
        (TrainSettings, "--market a.csv --refresh-every 2", "--refresh-every belongs to a generated market"),
        (TrainSettings, "--market a.csv --num-paths 2", "--num-paths belongs to a generated market"),
        (TrainSettings, "--market a.csv --temperature 1", "--temperature belongs to the neural market"),
        (
            TrainSettings,
            "--market random_walk --regime bull",
            "--regime belongs to the neural and the synthetic market",
        ),
        (TrainSettings, "--planted-kind signal", "--planted-kind belongs to the planted market"),
        (TrainSettings, "--news-accuracy 0.5", "--news-accuracy belongs to the market of synthetic news"),
        (TrainSettings, "--history-end 2020-01-01", "--history-end belongs to --history"),
        (TrainSettings, "--context-market v.csv", "--context-market belongs to a market of data"),
        (TrainSettings, "--market a.csv --scores s.csv", f"--scores belongs to {documents}"),
        (TrainSettings, "--task signals --scores s.csv", f"--scores belongs to {documents}"),
        (
            TrainSettings,
            "--train-end 2011-01-01 --test-fraction 0.3",
            f"--test-fraction belongs to {split}, without --tr",
        ),
        (TrainSettings, "--task execution --market synthetic", "--market belongs to a task on a market of bars"),
        (TrainSettings, "--task execution --train-end 2020-01-01", f"--train-end belongs to {split}"),
        (TrainSettings, "--actors 2 --max-lag 1", "--actors, --max-lag belong to --engine ray"),
        (TrainSettings, "--validation-fraction 0 --patience 3", "--patience belongs to a validation_fraction above 0"),
        (
            TrainSettings,
            "--algorithm exact --ensemble 2",
            "--ensemble belongs to a learner that trains several policies",
        ),
        (
            TrainSettings,
            "--task execution --subsets-per-path 2",
            "--subsets-per-path belongs to a policy's training on a",
        ),
        *(
            (
                TrainSettings,
                f"--task single_stock --algorithm grpo --model m {words}",
                f"{words.split()[0]} belongs to {owner}",
            )
            for words, owner in (
                ("--seeds 2", "the training of a policy"),
                ("--initial a", "the training of a policy"),
                ("--beside a", "the training of a policy"),
                ("--symbols-per-path 2", "a policy's training on a market of bars"),
                ("--patience 2", "a validation_fraction above 0"),
            )
        ),
        (EvaluateSettings, "--part all", "--part belongs to a market of data"),
        (EvaluateSettings, "--combine vote", "--combine belongs to several policies, of --seeds, --ensemble or check"),
        (EvaluateSettings, "--language.turns 2", "--language.turns belongs to --model"),
        (
            ServeSettings,
            "--task execution --validation-fraction 0.3",
            "--validation-fraction belongs to a task on a mar",
        ),
        (play.PlaySettings, "--test-fraction 0.3", f"--test-fraction belongs to {split}, without --train-end and"),
        (collect.CollectSettings, "--task execution --symbols A", "--symbols belongs to a task on a market of bars"),
    ):
        with pytest.raises(ValueError, match=f"^{re.escape(told)}.*: no effect with these settings$"):
            kind.defaults(words.split())
    with pytest.raises(ValueError, match=r"^--ppo\.clip: the settings of the learner are given as --learner\.clip$"):
        TrainSettings.defaults(["--ppo.clip", "0.2"])
    with pytest.raises(ValueError, match="unknown settings num_groups"):
        train_settings(num_groups=4)
    words = "--learner.clip 0.3 --num-envs 8 --refresh-every 2 --temperature 0.9 --env.tilt-gain 2 --help"
    TrainSettings.defaults(words.split())


def test_settings_without_effect_under_others_are_refused_and_reset():
    # Names of settings that there are, and owners.
    for given in (TRAIN, settings_of(algorithm="grpo"), replace(TRAIN, resume=Path("run"))):
        names = inapplicable(given)
        assert {name.partition(".")[0] for name in names} <= set(option_names(given))
        assert names["env.gate_threshold"] == "a gate" and ("folder" in names) == (given.resume is not None)
    grpo, dapo = (settings_of(algorithm="grpo", learner=GRPOConfig(variant=name)) for name in ("grpo", "dapo"))
    for given, words, told in (
        (
            settings_of(task="strategy", algorithm="grpo"),
            "--engine ray",
            "--engine belongs to the training of a policy",
        ),
        (ServeSettings.defaults(()), "--workers 2", "--workers belongs to --engine ray"),
        (TRAIN, "--env.gate_threshold=9", "--env.gate-threshold belongs to a gate"),
        (grpo, "--learner.refills 4", "--learner.refills belongs to variant dapo"),
        (replace(TRAIN, resume=Path("run")), "--preset quick --folder a", "--preset, --folder belong to a new run"),
        # Of parts whose options have no name before theirs.
        (TRAIN, "--combine vote --seeds 1", "--combine belongs to several policies, of --seeds or --ensemble"),
        (TWO, "--sharpe-temperature=2", "--sharpe-temperature belongs to --combine weighted"),
        (TRAIN, "--subsets-per-path 2", "--subsets-per-path belongs to symbols_per_path"),
        (GenerateSettings(out=Path("a")), "--no-clip", "--clip belongs to --history"),
    ):
        with pytest.raises(ValueError, match=f"^{re.escape(f'{told}: no effect with these settings')}"):
            refuse_inapplicable(given, given_options(words.split()))
    known = GenerateSettings(out=Path("a"), history=Path("b"))
    for given, name in ((dapo, "learner.refills"), (TWO, "combine"), (known, "clip")):
        refuse_inapplicable(given, [name])
    # From Python as from the command line.
    for wrong, told in (
        ({"env": {"hmax": 7}}, "--env.hmax belongs to action shares"),
        ({"combine": "vote"}, "--combine belongs to several policies"),
        ({"sharpe_temperature": 1.0, "seeds": 2}, "--sharpe-temperature belongs to --combine weighted"),
    ):
        with pytest.raises(ValueError, match=f"^{told}.*: no effect with these settings$"):
            train_settings(**wrong)
    assert sft.SftSettings(data=()).inapplicable() == {"lora_rank": "a model that is loaded"}
    assert sft.SftSettings(data=(), model="m").inapplicable() == {"tiny": "--model tiny"}
    news = NewsSettings(Path("a"), Path("b"))
    assert news.inapplicable() == dict.fromkeys(("batch_size", "device"), "a model as --scorer")
    assert replace(news, scorer="m").inapplicable() == {}
    assert AnswerConfig().inapplicable() == dict.fromkeys(("tool_form", "turns"), "tools")
    alone = LanguageConfig(tools=("all",), groups=1, variant="gigpo")
    assert alone.inapplicable().keys() == {"refills", "positive_share", "renew_reference"}
    assert LanguageConfig().inapplicable()["others"] == "a number of groups that the model plays"
    # A name is found however it is written.
    words = ["--a.long-name", "-0.1", "--no-flag", "--a.no_other=3", "b", "--b", "x"]
    assert given_options(words) == ["a.long_name", "flag", "a.other", "b"]


EPISODES = {"seed": 0, "episodes": 256}
VALIDATED = {"validation_fraction": 0.2, "validation_episodes": 64, "evaluations": 25}
SERVED = {"host": "127.0.0.1", "port": 8000, "splits": ("train", "validation", "test"), "num_tasks": 1000}
SERVED |= {"task": "single_stock", "seed": 0, "compile": True, "device": "auto"}
CHATS = {"out": Path("conversations.jsonl"), "agents": ("rule_based", "oracle"), "conversation": "episode"}
CHATS |= EPISODES | {"task": "single_stock", "min_grade": 0.0, "device": "auto"}


def test_defaults_that_the_pages_tell():
    trained = EPISODES | {"task": "stock_trading", "algorithm": "ppo", "device": "auto", "compile": True}
    trained |= {"agents": ("all",), "engine": "process", "tracker": "none"}
    for kind, expected in (
        (markets.BarMarket, {"market": "neural"}),
        (markets.ByShare, {"test_fraction": 0.2, "embargo": 20}),
        (markets.ByDates, {"embargo": 20}),
        (markets.BySpans, {"embargo": 20, "test_months": 12, "train_window": "expanding"}),
        (markets.GeneratedMarket, {"num_paths": 32, "market_seed": 0}),
        (markets.NeuralMarket, {"temperature": 1.0}),
        (markets.ScoredFileMarket, {"score_delay": 1, "market_close": "16:00 America/New_York"}),
        (TrainSettings, trained),
        (kinds.Rows, {"num_envs": 2048}),
        (kinds.Groups, {"num_groups": 128, "group_size": 16}),
        (kinds.NoValidation, {"validation_fraction": 0.0}),
        (kinds.Validated, VALIDATED),
        (kinds.Combining, {"combine": "mean", "sharpe_temperature": 1.0}),
        (kinds.PolicyRuns, {"seeds": 1}),
        (kinds.Subsets, {"subsets_per_path": 16}),
        (ActorSettings, {"actors": 2, "max_lag": 0, "stall_seconds": 600.0}),
        (EvaluateSettings, EPISODES | {"task": "stock_trading", "agents": ("all",), "device": "auto"}),
        (collect.CollectSettings, CHATS),
        (play.PlaySettings, {"seed": 0, "task": "single_stock", "device": "auto"}),
        (HostSettings, SERVED),
        (ServeSettings, {"web": False, "engine": "process", "workers": 2}),
        (ValidationSplit, {"validation_fraction": 0.2}),
        (sft.SftSettings, {"seed": 0, "device": "auto", "lora_rank": 0, "checkpoint_every": 0}),
        (replay.ReplaySettings, {"device": "cpu"}),
        (NewsSettings, {"scorer": "lexicon", "batch_size": 32, "device": "auto"}),
    ):
        names = [name for name, hint in kind.__annotations__.items() if "ClassVar" not in str(hint)]
        own = {item.name: item.default for item in fields(kind) if item.name in names}
        assert {name: value for name, value in own.items() if value not in (MISSING, None, ())} == expected, kind


def test_a_preset_may_bring_settings_of_other_kinds(tmp_path):
    preset = tmp_path / "both.yaml"
    preset.write_text(
        "num_envs: 8\nnum_groups: 3\nrefresh_every: 5\nregime: bull\nnum_paths: 4\nppo: {gamma: 0.5}\n"
        "grpo: {variant: dapo, step_gamma: 0.5}\nlanguage: {turns: 2}\n"
    )

    def given(*words: str) -> TrainSettings:
        return TrainSettings.defaults(["--preset", str(preset), *words])

    ppo, data, grpo = given(), given("--market", "a.csv"), given("--algorithm", "grpo", "--group-size", "5")
    assert (ppo.batch.num_envs, ppo.source.num_paths, ppo.source.regime, ppo.paths.refresh_every) == (8, 4, "bull", 5)
    assert ppo.learner.gamma == data.learner.gamma == 0.5 and data.paths.refresh_every is None
    assert isinstance(data.source, markets.FileMarket) and data.batch == ppo.batch
    assert (grpo.batch.num_groups, grpo.learner.variant) == (3, "dapo")
    assert given("--algorithm", "grpo", "--model", "m", "--task", "single_stock").learner.turns == 2
