"""Settings of a training: their defaults, and what is seen to fail before the market is made."""

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.tasks.commands.small_runs import settings_of
from vecenv.curriculum import CurriculumSettings
from vecenv.learn import dqn, exact, grpo, sac
from vecenv.learn.a2c import A2CConfig
from vecenv.learn.cppo import CPPOConfig
from vecenv.learn.ppo import PPOConfig
from vecenv.registry import task_named
from vecenv.system.preset_files import shipped_presets
from vecenv.tasks.experiment import planning
from vecenv.tasks.experiment.planning import check_training
from vecenv.tasks.experiment.settings import TrainSettings, default_settings
from vecenv.tasks.stock_trading.config import StockTradingConfig

OTHER = Path("other")
SYMBOLS = PPOConfig(policy="symbol")
QUEUE = {"algorithm": "dqn", "task": "crypto_lob"}
VALIDATED = {"seeds": 2, "validation_fraction": 0.2, "combine": "weighted"}
CLOSED = {"algorithm": "grpo", "learner": grpo.GRPOConfig(minibatches=1), "num_groups": 2, "group_size": 2}
LEVELS = CurriculumSettings("uniform")
ACTORS = {"engine": "ray"}
MODEL = {"algorithm": "grpo", "task": "single_stock", "model": "m"}
SCALES = ("reward_scale", "cash_scale", "price_scale", "holdings_scale", "feature_scale")


def settings(**given) -> TrainSettings:
    """Settings of a training on the default rules of a task, its action perhaps another one."""
    rules = {name: given.pop(name) for name in ("action", "cost_ramp") if name in given}
    env = replace(task_named(given.get("task", "stock_trading")).config(), **rules)
    rows = {} if given.get("algorithm") == "grpo" else {"num_envs": 16}
    return settings_of(**{"env": env, "device": "cpu"} | rows | given)


def checked(**given) -> TrainSettings:
    """Settings that are checked as `vecenv train` does before any work."""
    made = settings(**given)
    check_training(made)
    return made


def test_what_does_not_fit_is_told_before_any_work_and_what_fits_is_taken():
    for given, told in (
        # Of the settings alone.
        ({"validation_fraction": 1}, "validation_fraction must be in (0, 1), got 1"),
        ({"validation_fraction": -0.1}, "validation_fraction must be in (0, 1), got -0.1"),
        ({"seeds": 0}, "seeds must be at least 1, got 0"),
        ({"ensemble": 1}, "ensemble must be at least 2, got 1"),
        ({"symbols_per_path": 0}, "symbols_per_path must be at least 1, got 0"),
        ({"symbols_per_path": 2, "subsets_per_path": 0}, "subsets_per_path must be at least 1, got 0"),
        # Of the learner and its rows.
        ({"model": "m"}, "a language model learns by --algorithm grpo"),
        ({"task": "single_stock", "algorithm": "exact"}, "task 'single_stock' has no smooth form, which --algorithm e"),
        (CLOSED | {"group_size": 1}, "group_size must be at least 2"),
        (CLOSED | {"learner": grpo.GRPOConfig(minibatches=3)}, "4 episodes cannot be split into 3 equal minibatches"),
        (MODEL | {"task": "stock_trading"}, "task 'stock_trading' has no text"),
        (MODEL | {"model": "tiny"}, "make it with vecenv sft, and name its folder"),
        (MODEL | {"model": "a/b/c"}, "a/b/c: there is no folder of a model"),
        ({"algorithm": "dqn"}, "dqn needs actions that are a single choice, which those of task 'stock_trading' with"),
        (QUEUE | {"action": "limit"}, "of task 'crypto_lob' with env.action limit"),
        ({"algorithm": "sac", "task": "execution"}, "numbers within bounds, which those of task 'execution' are not"),
        ({"algorithm": "td3", "task": "crypto_lob"}, "numbers within bounds, which those of task 'crypto_lob' with"),
        (QUEUE | {"learner": dqn.DQNConfig(num_steps=16, buffer_size=64)}, "num_steps 16 x num_envs 16, got 64"),
        ({"algorithm": "sac", "learner": sac.SACConfig(num_steps=4, buffer_size=32)}, "num_steps 4 x num_envs 16, got"),
        # Of several policies.
        ({"ensemble": 2, "seeds": 2}, "either --ensemble trains several policies as one batch, or --seeds one after"),
        ({"ensemble": 2, "initial": OTHER}, "--initial cannot be given to policies of one batch: it needs a training"),
        ({"ensemble": 2, "symbols_per_path": 2}, "--symbols-per-path cannot be given to policies of one batch"),
        ({"ensemble": 2, "learner": PPOConfig(target_kl=0.1)}, "target_kl stops one learner's epochs"),
        ({"ensemble": 2, "learner": PPOConfig(by_reference=True)}, "by_reference keeps one table for one policy"),
        ({"ensemble": 2, "task": "curriculum", "levels": LEVELS}, "'curriculum' follow a schedule (curriculum)"),
        ({"ensemble": 2, "task": "crypto_lob", "cost_ramp": 5}, "follow a schedule (env.cost_ramp)"),
        ({"seeds": 2, "combine": "select"}, "--combine select needs validations: set a --validation-fraction above 0"),
        (VALIDATED | {"task": "crypto_lob"}, "--combine weighted needs accounts, which task 'crypto_lob' does not"),
        ({"ensemble": 2, "task": "single_stock", "combine": "vote"}, "are combined by --combine mean alone"),
        (VALIDATED | {"sharpe_temperature": 0}, "temperature must be positive, got 0"),
        ({"seed": 2**32 - 2, "seeds": 3}, f"seed must be in [0, 2^32), got {2**32}"),
        ({"seed": 2**32 - 2, "ensemble": 3}, f"seed must be in [0, 2^32), got {2**32}"),
        ({"seed": -1}, "seed must be in [0, 2^32), got -1"),
        # Of actors.
        (ACTORS | {"num_envs": 20}, "20 sub-environments cannot be split into 8 equal shards: take 5 or 10 shards"),
        (ACTORS | {"actors": 9}, "9 actors cannot share 8 shards of the rows"),
        (ACTORS | {"max_lag": 2}, "max_lag must be in [0, 1], got 2"),
        (ACTORS | {"max_lag": 1, "algorithm": "a2c"}, "a2c learns from its own policy alone: --max-lag must be 0"),
        (ACTORS | {"max_lag": 1, "task": "crypto_lob", "cost_ramp": 5}, "--max-lag 1 needs rules that stay: those of"),
        (ACTORS | {"algorithm": "exact"}, "--algorithm exact plays by itself"),
        (ACTORS | {"ensemble": 2}, "--engine ray plays the rows of one policy: train several by --seeds, not"),
        # Of memory, subsets, references and other policies.
        ({"num_envs": 10**9}, "16 steps of 1,000,000,000 sub-environments"),
        ({"episodes": 10**9}, "1,000,000,000 test episodes"),
        ({"symbols_per_path": 2}, "a policy of any number of symbols: --learner.policy symbol or attention, not flat"),
        ({"symbols_per_path": 2, "task": "portfolio", "learner": SYMBOLS}, "task 'portfolio' trades symbols by name"),
        ({"learner": replace(SYMBOLS, by_reference=True)}, ", set --learner.policy flat"),
        ({"learner": PPOConfig(by_reference=True, hidden=())}, "no observations by reference: "),
        ({"initial": OTHER}, "other: there is no checkpoint"),
        ({"beside": (OTHER,)}, "other: there is no checkpoint"),
    ):
        with pytest.raises(ValueError, match=re.escape(told)):
            checked(**given)
    # What fits is taken.
    assert settings(**CLOSED).batch.rows == 4
    for given in (
        {"seeds": 2, "combine": "vote"},
        {"combine": "select"},
        {"seed": 2**32 - 3, "seeds": 3},
        {"ensemble": 2, "algorithm": "cppo", "learner": CPPOConfig(num_steps=16)},
        {"seeds": 2, "validation_fraction": 0.2, "combine": "select"},
        {"symbols_per_path": 1, "subsets_per_path": 1, "learner": PPOConfig(policy="attention")},
        {"learner": PPOConfig(by_reference=True)},
        {"algorithm": "sac", "learner": sac.SACConfig(num_steps=4, buffer_size=64, minibatch_size=64)},
        QUEUE,
        {"algorithm": "exact"},
    ):
        assert checked(**given).batch.rows == 16


def test_ray_that_is_not_installed_is_told_before_any_work(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=re.escape("--engine ray needs Ray: pip install 'vecenv[ray]'")):
        checked(**ACTORS)


def test_the_memory_and_the_products_of_a_training(monkeypatch, recwarn):
    """64 bytes for each step of a sub-environment, each kept step and each test episode."""
    asked = []
    monkeypatch.setattr(planning, "check_memory", lambda size, device, what: asked.append((size, what)))
    checked(episodes=10, learner=PPOConfig(num_steps=4), ensemble=3)
    assert asked == [(48 * 4 * 64, "4 steps of 48 sub-environments"), (640, "10 test episodes")]
    checked(**QUEUE, learner=dqn.DQNConfig(num_steps=2, buffer_size=1024, minibatch_size=64))
    assert asked[2:4] == [(16 * 2 * 64, "2 steps of 16 sub-environments"), (1024 * 64, "1,024 kept steps")]
    asked.clear()
    checked(algorithm="exact", learner=exact.ExactConfig(num_steps=5))
    assert asked[0] == (16 * 5 * 64, "5 steps of 16 sub-environments")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    for precision in ("float32", "bfloat16"):
        checked(learner=PPOConfig(precision=precision))
        warned = any("--precision bfloat16: this CPU (AVX2)" in str(warning.message) for warning in recwarn)
        assert warned == (precision == "bfloat16")


def test_tasks_tell_which_of_their_actions_are_numbers():
    for task, numbers, others in (
        ("crypto_lob", {"continuous"}, {"target", "step", "limit"}),
        ("agent_market", {"continuous"}, {"discrete", "limit"}),
        ("portfolio", {"weights", "limit_weights"}, {"discrete", "orders"}),
        ("stock_trading", {"shares", "weights", "tilt"}, set()),
        ("signals", {"shares", "weights", "tilt"}, set()),
        ("news_signals", {"continuous"}, {"levels"}),
    ):
        record = task_named(task)
        assert {
            one for one in numbers | others if record.actions(type(record.config())(action=one)) == "numbers"
        } == numbers


def test_presets_win_over_defaults_and_a_resumed_run_goes_on_under_its_own_settings(tmp_path):
    train, task, both = (tmp_path / f"{name}.yaml" for name in ("train", "task", "both"))
    train.write_text("seed: 4\nnum_envs: 8\nenv: {hmax: 7, commission: 1e-3, reward_scale: 1}\n")
    task.write_text("hmax: 5\nreward_scale: 1e-2\n")
    words = ["--preset", str(train), "--task-preset", str(task), "--num-envs", "16", "--help"]
    settings = TrainSettings.defaults(words)
    assert (settings.seed, settings.batch.num_envs, settings.episodes) == (4, 8, 256)
    assert (settings.env.hmax, settings.env.commission, settings.env.reward_scale) == (5, 1e-3, 1e-2)
    assert settings.preset is settings.task_preset is None
    # What a preset sets for PPO holds for CVaR-PPO unless it sets it there.
    both.write_text("ppo: {gamma: 0.5, hidden: [4]}\ncppo: {hidden: [5], beta: 7}\n")
    learner = TrainSettings.defaults(["--preset", str(both), "--algorithm", "cppo"]).learner
    assert (learner.gamma, learner.hidden, learner.beta) == (0.5, (5,), 7.0)
    assert TrainSettings.defaults(["--preset", str(both)]).learner.hidden == (4,)
    # Settings of the learner are those of the learner that the file names, or of PPO.
    both.write_text("learner: {gamma: 0.25}\n")
    gammas = [
        TrainSettings.defaults(["--preset", str(both), *more]).learner.gamma for more in ([], ["--algorithm", "a2c"])
    ]
    assert gammas == [0.25, A2CConfig().gamma]
    # Tasks have presets and markets of their own.
    for words, market, policy in (
        ("--market a.csv", "a.csv", "symbol"),
        ("--task execution", None, "flat"),
        ("--task news_signals", "news", "flat"),
        ("--model m --task single_stock --algorithm grpo", "neural", None),
    ):
        settings = TrainSettings.defaults(words.split())
        assert getattr(settings.source, "market", None) == market
        assert getattr(settings.learner, "policy", None) == policy
    # The short form of a command is the command with less of everything.
    for words in ([], ["--market", "a.csv"]):
        whole, short = TrainSettings.defaults(words), TrainSettings.defaults(["--preset", "quick", *words])
        assert (short.env.action, short.env.reward, short.learner.policy) == ("tilt", "excess_log_return", "symbol")
        assert replace(short.env, episode_length=whole.env.episode_length) == whole.env
        shares = [each.validation.validation_fraction for each in (short, whole)]
        assert shares[0] == shares[1] and short.learner.gamma == whole.learner.gamma
        assert (short.batch.num_envs, short.episodes, short.learner.total_frames) == (256, 200, 65_536)
    # Presets state their scales: other defaults do not change their figures.
    for name in shipped_presets("train"):
        rules = TrainSettings.defaults(["--preset", name]).env
        assert not isinstance(rules, StockTradingConfig) or None not in [getattr(rules, scale) for scale in SCALES]
    for words in ([], ["--algorithm", "cppo"]):
        shipped = TrainSettings.defaults(words).learner
        assert (shipped.policy, shipped.total_frames) == ("symbol", 2_500_000)
    # A resumed run goes on under its own settings.
    (tmp_path / "settings.yaml").write_text("task: portfolio\nalgorithm: grpo\nnum_groups: 3\nseed: 4\n")
    words = ["--resume", str(tmp_path), "--task-preset", "nothing", "--preset", "nothing"]
    resumed = TrainSettings.defaults(words)
    assert (resumed.task, resumed.algorithm, resumed.seed, resumed.batch.num_groups) == ("portfolio", "grpo", 4, 3)
    assert resumed.env.symbols and TrainSettings.defaults([*words, "--task", "portfolio"]) == resumed
    with pytest.raises(ValueError, match=re.escape(f"{tmp_path} is a run of the task 'portfolio', not of 'single_st")):
        TrainSettings.defaults([*words, "--task", "single_stock"])
    # What does not fit is named with its file.
    file, killed = tmp_path / "own.yaml", tmp_path / "killed"
    killed.mkdir(), (killed / "checkpoint.pt").touch()
    for words, text, told in (
        (
            "--preset FILE",
            "env: {comission: 0.1}",
            "FILE: env: unknown settings comission (did you mean commission?); there are ",
        ),
        ("--preset FILE", "resume: run", "FILE: unknown settings resume"),
        ("--preset FILE", "env: {commission: 2}", "FILE: env: commission must be in [0, 1), got 2"),
        ("--task-preset FILE", "hmax: 0", "FILE: hmax must be positive"),
        ("--resume nowhere", "", "nowhere: not the folder of a run, it has no settings.yaml"),
        (
            f"--resume {killed}",
            "",
            f"{killed}: not the folder of a run, it has no settings.yaml; begin anew in another",
        ),
    ):
        file.write_text(text)
        with pytest.raises(ValueError, match=re.escape(told.replace("FILE", str(file)))):
            TrainSettings.defaults(words.replace("FILE", str(file)).split())


def test_files_of_settings_name_what_is_wrong_and_their_learner(tmp_path):
    file = tmp_path / "settings.yaml"
    for text, told in (
        ("task: [a, b]", "task: ['a', 'b'] is not of the type str | None"),
        ("train_end: soon", "train_end: 'soon' is not of the type Optional[datetime.date]"),
        ("algorithm: true", "algorithm: True is no text"),
        ("learner: [3]", "learner: settings by name are needed, got [3]"),
    ):
        file.write_text(text)
        with pytest.raises(ValueError, match=f"^{re.escape(f'{file}: {told}')}"):
            default_settings({"resume": tmp_path})
    file.write_text("{short_form: true, algorithm: sac}")
    assert default_settings({"preset": str(file)}).learner.gamma == 0
