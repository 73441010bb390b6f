"""Importing is cheap, tasks are found by name, and a task that nothing knows goes through every learner and door."""

import asyncio
import io
import itertools
import re
import subprocess
import sys
from dataclasses import replace
from functools import partial
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch
from rich.console import Console

import vecenv
from tests.reach_zero import REACH_ZERO, WalkConfig
from vecenv import registry
from vecenv.core import capabilities
from vecenv.learn import group_episodes, grpo, ppo, report
from vecenv.learn.evaluation import evaluate
from vecenv.learn.report import evaluation_table
from vecenv.market.validation import MarketDataError
from vecenv.tasks.commands.evaluate import EvaluateSettings
from vecenv.tasks.experiment.settings import TrainSettings
from vecenv.tasks.experiment.splits import FIRST, VALIDATION, SeedSplits
from vecenv.tasks.stock_trading.scenario import StockTrading, StockTradingConfig
from vecenv.testing import check_task
from vecenv.text.dialogue import Dialogue, TextRules
from vecenv.text.tensor_interaction import TensorInteraction

SMALL = {"episode_length": 5, "features": ("macd",), "market_options": {"num_paths": 2, "num_days": 120}}
LOADED = """
import sys, torch
from vecenv import FusedCollector, MarketTape, VecEnv, make
from vecenv.tasks.crypto_lob.scenario import CryptoLob
heavy = ("pandas", "pyarrow", "matplotlib", "rich", "tyro")
print([name for name in heavy if name in sys.modules], torch.cuda.is_initialized())
"""


def make(**given):
    return vecenv.make("stock_trading", **{"compile": False} | SMALL | given)


def printed(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True).stdout


@pytest.mark.assembly
def test_the_public_names_bring_no_reader_and_do_not_start_cuda():
    assert printed(LOADED) == "[] False\n"


def test_importing_alone_does_not_even_load_torch():
    assert printed("import sys, vecenv; print('torch' in sys.modules, vecenv.__version__)").startswith("False ")
    for name in vecenv.__all__:
        assert getattr(vecenv, name).__name__ == name
    # What the guide tells of, and every class of what a task can do.
    guide = Path("vecenv/core/README.md").read_text()
    cells = "".join(re.findall(r"^\| (`[A-Z].*?) \|", guide, re.MULTILINE))
    classes = {*re.findall(r"`([A-Z]\w+)`", cells)}
    assert classes == {kind.__name__ for kind in capabilities.CAPABILITIES} | {"Drawing", "Scenario"}
    assert classes | {*re.findall(r"vecenv\.(\w+)[\[(]", guide)} <= {*vecenv.__all__}
    with pytest.raises(AttributeError, match="no attribute 'VecEnvironment'"):
        _ = vecenv.VecEnvironment


def test_it_is_imported_from_the_folder_that_holds_the_checkout(tmp_path):
    (tmp_path / "vecenv").symlink_to(Path(__file__).parents[1])
    # Beside entries that Python passes over, and a hook that finds the folder again.
    hook = "type('Hook', (), {'find_spec': staticmethod(lambda *names: PathFinder.find_spec(*names))})"
    command = "import sys; from importlib.machinery import PathFinder; "
    command += f"sys.path += [None]; sys.meta_path[:0] = [{hook}]; import vecenv, vecenv.tasks; "
    command += "print(vecenv.make.__module__, *vecenv.__path__)"
    told = subprocess.run([sys.executable, "-c", command], cwd=tmp_path, capture_output=True, text=True)
    assert told.stdout.split() == [vecenv.make.__module__, *vecenv.__path__], told.stderr


def test_a_learner_loads_no_market_and_few_files():
    code = "import sys, vecenv.learn.ppo; print(*(name for name in sys.modules if name.split('.')[0] == 'vecenv'))"
    loaded = printed(code).split()
    assert len(loaded) <= 40 and not [name for name in loaded if "market" in name or "finance" in name]


def test_names_and_settings_are_checked(monkeypatch):
    for given, told in (
        (
            {"hmin": 1, "comission": 0.1},
            "unknown settings of task 'stock_trading': comission, hmin .did you mean commission.*hmax",
        ),
        (
            {"market_options": {"num_path": 2, "sed": 1}},
            r"unknown market options num_path, sed .did you mean num_paths or seed.*there are .*num_paths",
        ),
        ({"hmax": 0.0}, "hmax must be positive"),
        ({"episode_length": 500}, r"120 days are fewer than the warm-up .* an episode of 500 days"),
    ):
        with pytest.raises(ValueError, match=told):
            make(**given)
    # Over the configuration, and market options over those of the task.
    options = {"num_paths": 1, "num_days": 120, "features": ("macd", "rsi_30")}
    config = StockTradingConfig(hmax=7.0, initial_cash=500.0, features=("macd",))
    scenario = make(config=config, hmax=9.0, market_options=options).scenario
    assert (scenario.config.hmax, scenario.config.initial_cash, scenario.config.episode_length) == (9.0, 500.0, 5)
    assert scenario.tape.feature_names == ("macd", "rsi_30")
    # Tasks are found by name.
    assert registry.task_named("stock_trading").scenario is StockTrading
    with pytest.raises(ValueError, match=r"unknown task 'stocktrading'; installed tasks: .*stock_trading"):
        vecenv.make("stocktrading")
    # Another package adds one.
    added = EntryPoint("added", "vecenv.tasks.stock_trading.task:STOCK_TRADING", registry.GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: (added,) if group == "vecenv.tasks" else ())
    assert vecenv.make("added", compile=False, **SMALL).num_envs == 1
    monkeypatch.setattr(registry, "entry_points", lambda group: ())
    with pytest.raises(ValueError, match="installed tasks: none"):
        make()


@pytest.mark.parametrize("compiled", [False, True])
def test_arguments_reach_the_environment_and_its_market(compiled):
    env = make(num_envs=3, seed=12, compile=compiled, params={"hmax": torch.tensor([1.0, 2.0, 3.0])})
    assert env.compiled is compiled
    assert vecenv.FusedCollector(env, num_steps=1).mode == ("recorded" if compiled else "eager")
    assert env.seed_tensor.item() == 12 and env.scenario.varied == {"hmax"}
    assert env.scenario.tape.num_paths == 2 and env.scenario.tape.feature_names == ("macd",)
    # The gate brings its series to the market, and a tape is used as it is.
    tape = make(gate="turbulence", market_options={"num_paths": 1, "num_days": 400}).scenario.tape
    assert tape.context_names == ("turbulence",)
    assert make(market=tape, market_options=None).scenario.tape.fingerprint() == tape.fingerprint()
    with pytest.raises(MarketDataError, match="unknown market series 'vix'"):
        make(gate="vix")


@pytest.fixture
def walking(monkeypatch):
    """Register a task that nothing in the package knows, and return what makes its environments."""
    monkeypatch.setattr(registry, "_registered", {})
    vecenv.register(REACH_ZERO)
    return partial(vecenv.make, "reach_zero", compile=False)


def test_a_strangers_task_is_found_conforms_and_is_split(walking):
    env = walking(speed=0.2)
    assert "reach_zero" in vecenv.task_names()
    assert (env.scenario.name, env.scenario.version, env.scenario.task) == ("reach_zero", "1", REACH_ZERO)
    assert float(env.scenario.params["speed"]) == pytest.approx(0.2)
    assert float(vecenv.make(REACH_ZERO, config=WalkConfig(0.3)).scenario.params["speed"]) == pytest.approx(0.3)
    vecenv.register(REACH_ZERO)
    for name in ("reach_zero", "single_stock"):
        with pytest.raises(ValueError, match=f"there is a task '{name}' already"):
            vecenv.register(replace(REACH_ZERO, name=name, version="2"))
    check_task("reach_zero", compiled=False)
    # Episodes of the test are none of the training; settings of a market are refused.
    splits = SeedSplits(REACH_ZERO, torch.device("cpu"))
    test, validation = (splits.episodes(split, 8, WalkConfig())[0] for split in ("test", "validation"))
    assert not test.compiled and (VALIDATION, FIRST) == (2**30, {"train": 0, "validation": 2**30, "test": 2**31})
    for _ in range(2):
        for one, other in itertools.combinations([env.state.position for env in (walking(8), validation, test)], 2):
            assert not torch.isin(one, other).any()
        # Who stands still ends where the episode that is played began.
        played = [evaluate(env, {"stand": REACH_ZERO.agents["stand"]()}, 0) for env in (validation, test)]
        assert [one.num_episodes for one in played] == [8, 8]
    with pytest.raises(ValueError, match="episodes must be in 1"):
        splits.episodes("test", 0, WalkConfig())
    for kind in (TrainSettings, EvaluateSettings):
        with pytest.raises(ValueError, match="--market belongs to a task on a market of bars: no effect with these"):
            kind.defaults(["--task", "reach_zero", "--market", "synthetic"])


def test_learners_train_on_it_and_agents_are_compared_by_its_outcomes(walking, tmp_path):
    metrics = ppo.PPO(walking(8), ppo.PPOConfig(num_steps=4, minibatches=1, hidden=(8,))).update()
    assert metrics["frames"] == 32 and "hold" not in metrics
    config = grpo.GRPOConfig(hidden=(8,), minibatches=1, variant="gigpo")
    assert grpo.GRPO(walking(16), config, 8).update()["frames"] == 20 * 16
    for part, told in (
        ("total_return", "total_return of an episode, which --learner.reward.total-return weighs"),
        ("invalid", "invalid_actions of an episode, which --learner.reward.invalid weighs"),
    ):
        with pytest.raises(ValueError, match=f"does not tell {told}"):
            grpo.GRPO(walking(16), replace(config, reward=group_episodes.EpisodeReward(**{part: 1.0})), 8)
    evaluation = evaluate(walking(200, seed=3), {name: agent() for name, agent in REACH_ZERO.agents.items()})
    told = evaluation.to_json()["agents"]
    assert told["homewards"]["distance"]["mean"] < 0.02 < told["stand"]["distance"]["mean"]
    assert told["homewards"]["reward"]["mean"] > told["stand"]["reward"]["mean"]
    console = Console(width=120, file=io.StringIO())
    console.print(evaluation_table(evaluation))
    shown = console.file.getvalue()
    assert "Distance" in shown and "homewards" in shown and "Sharpe" not in shown
    report.write_run_folder(tmp_path, {"command": "test"}, evaluation)
    assert (tmp_path / "metrics.json").is_file() and [p.name for p in tmp_path.glob("*.png")] == ["rewards.png"]


def test_openenv_serves_it(walking):
    pytest.importorskip("openenv")
    from vecenv.adapters.openenv.models import TextAction
    from vecenv.adapters.openenv.session import TextSession
    from vecenv.adapters.sessions.pool import RowPool
    from vecenv.adapters.sessions.service import TextService

    async def played():
        rows = Dialogue(TensorInteraction(walking(2)), TextRules(format_penalty=-0.5, steps=1.0))
        session = TextSession(TextService("reach_zero", {"test": RowPool(rows)}, 10, 0))
        shown = await session.reset_async(seed=1, split="test", index=3)
        assert shown.text.startswith("You are at ") and list(shown.outcomes) == ["distance"]
        shown = await session.step_async(TextAction(text="to the left"))
        assert not shown.valid and shown.reward < -0.5 and session.state.units == {"distance": "count"}
        assert "You are at" in session.render_web(shown.model_dump()) and "distance" in session.render_web({})

    asyncio.run(played())
