"""Agents on real order books by coin and fee: ``python -m vecenv.benchmarks.learning.order_book_agents``.

For each fee PPO is trained with several seeds on one book, and plain, double and duelling DQN once each. They play its
held-out hours, in disjoint windows, beside an untrained policy, the rules and the oracle; then, without another
training, all of other books. The files of `BOOKS` lie in the folder of the setting ``data``.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import tyro

import vecenv
from vecenv.benchmarks import device as machine
from vecenv.benchmarks.learning.order_book_report import report
from vecenv.benchmarks.result_files import RESULTS, plain, write_result
from vecenv.core.env import VecEnv
from vecenv.learn.agents import Agent
from vecenv.learn.ensemble import VotePolicy, disagreement, load_ensemble
from vecenv.learn.evaluation import Evaluation, evaluate
from vecenv.learn.evaluation_table import evaluation_table
from vecenv.registry import task_named
from vecenv.tasks.commands.comparison import ENSEMBLE, UNTRAINED, baseline_agents, trained_agents, wide_console
from vecenv.tasks.commands.seeds import policies_by_folder, policy_files
from vecenv.tasks.commands.train import main as train
from vecenv.tasks.commands.train_settings import TrainSettings
from vecenv.tasks.crypto_lob.config import CryptoLobConfig

TASK = "crypto_lob"

TRAINED_ON = {"book": "standx_btcusd_500ms.parquet", "train_hours": 24.0, "test_hours": 10.0}
"""The book of the training, with the hours of training and test."""

HOME = "BTC-USD standx"
"""Its coin."""

BOOKS: dict[str, dict[str, str]] = {
    **{
        f"{coin} hyperliquid": {"book": "hyperliquid_4coins_500ms.parquet", "symbol": f"{coin}.hyperliquid"}
        for coin in ("BTC", "ETH", "SOL", "WLFI")
    },
    "BTC-CNY okcoin": {"book": "okcoin_btccny_20160303_500ms.parquet"},
    "BTC-USD bitstamp": {"book": "bitstamp_btcusd_20150501_1s.parquet"},
    **{
        symbol: {"book": "crypto_lob_100ms.parquet", "symbol": symbol}
        for symbol in ("BTCUSDT.spot", "ETHUSDT.spot", "BTCUSDT.usdm", "ETHUSDT.usdm", "BTCUSD_PERP.cm")
    },
}
"""Books on which nothing is trained, by the name of the coin."""

MEMBERS: dict[str, dict[str, Any]] = {"dqn": {}, "double_dqn": {"double": True}, "duelling_dqn": {"duelling": True}}
"""Settings of the value learners, by name; they vote, as in the contest."""

PPO_VOTE, DQN_VOTE = "ppo_vote", "dqn_vote"

TOLD = ("total_return", "annual_sharpe", "max_drawdown", "romad", "trades", "win_share", "turnover", "exposure")


@dataclass(frozen=True)
class OrderBookAgentsConfig:
    """Settings of the comparison of agents on real order books."""

    data: Path = Path(os.environ.get("VECENV_DATA", "data"))
    """Folder of the books."""
    fees: tuple[float, ...] = (0.0, 2.0, 5.0)
    """Taker fees in basis points."""
    seeds: int = 3
    """Trainings of PPO for each fee."""
    ppo_frames: int = 12_582_912
    """Steps of a training of PPO."""
    dqn_frames: int = 6_291_456
    """Steps of a training of DQN."""
    episode_steps: int = 600
    """Steps of an episode on the book of the training."""
    other_steps: int = 120
    """Steps of an episode on the other books, of which some last eleven minutes."""
    forecasts: str = ""
    """File of ``vecenv factors train`` on the book of the training, to be shown; then no other book is played."""
    compile: bool = True
    """Compile rollouts and updates."""
    threads: int = 1
    """CPU threads."""
    output: Path | None = RESULTS
    """Folder for the JSON; none is written without it."""


def main(config: OrderBookAgentsConfig) -> dict[str, Any]:
    """Train and compare, print the tables, and write them as JSON."""
    torch.set_num_threads(config.threads)
    console = wide_console()
    result: dict[str, Any] = {
        "benchmark": "order_book_agents",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": machine.device_name(torch.device("cpu")),
        "torch": torch.__version__,
        "config": plain(config),
        "books": {},
    }
    with tempfile.TemporaryDirectory() as folder:
        for fee in config.fees:
            run = Path(folder) / f"fee_{fee:g}"
            train_all(config, fee, run)
            for name in (HOME, *(() if config.forecasts else BOOKS)):
                env = environment(config, fee, name)
                evaluation = evaluate(env, agents_of(env, run))
                console.print(f"{name}, taker fee {fee:g} basis points")
                console.print(evaluation_table(evaluation))
                entry = result["books"].setdefault(name, {"market": evaluation.metadata["market"], "fees": {}})
                vote = load_ensemble(list(member_files(run).values()), env)
                assert isinstance(vote, VotePolicy)
                entry["fees"][f"{fee:g}"] = told(evaluation) | {"disagreement": disagreement(vote, env, seed=0)}
    stem = "order-book-agents-forecasts" if config.forecasts else "order-book-agents"
    write_result(config.output, stem, result)
    if config.output is not None:
        (config.output / f"{stem}.md").write_text(report(result))
    return result


def rules(config: OrderBookAgentsConfig, fee: float, **book: Any) -> CryptoLobConfig:  # noqa: ANN401
    """Return the rules on a book of the folder."""
    options = {**book, "book": str(config.data / book["book"])}
    return CryptoLobConfig(taker_fee=fee, episode_steps=config.episode_steps, forecasts=config.forecasts, **options)


def train_all(config: OrderBookAgentsConfig, fee: float, run: Path) -> None:
    """Train PPO with several seeds and the members of the vote, by the task's preset."""
    settings = TrainSettings.defaults(["--task", TASK])
    env = replace(rules(config, fee, **TRAINED_ON), cost_ramp=settings.env.cost_ramp)
    ppo = replace(settings.ppo, total_frames=config.ppo_frames)
    settings = replace(settings, env=env, ppo=ppo, compile=config.compile)
    train(replace(settings, seeds=config.seeds, folder=run / "ppo"))
    for name, variant in MEMBERS.items():
        dqn = replace(settings.dqn, total_frames=config.dqn_frames, **variant)
        train(replace(settings, algorithm="dqn", dqn=dqn, folder=run / name))


def member_files(run: Path) -> dict[str, Path]:
    """Return the checkpoints of the members of the vote by name."""
    return policies_by_folder([run / name for name in MEMBERS], ())


def environment(config: OrderBookAgentsConfig, fee: float, name: str) -> VecEnv:
    """Return the disjoint windows of a book, or of its part, that nothing was trained on."""
    if name in BOOKS:
        own = replace(rules(config, fee, **BOOKS[name]), test_fraction=1.0, episode_steps=config.other_steps)
    else:
        own = rules(config, fee, **TRAINED_ON)
    task = task_named(TASK)
    one = vecenv.make(TASK, 1, compile=False, config=task.parted(own, "test"))
    windows = one.scenario.metadata()["part"]["windows"]
    return vecenv.make(TASK, windows, compile=False, config=task.parted(own, "test"))


def agents_of(env: VecEnv, run: Path) -> dict[str, Agent]:
    """Return the trained policies and their votes, an untrained one of PPO, the rules and the oracle."""
    policies = policy_files(run / "ppo")
    untrained = {UNTRAINED: next(iter(policies.values())).with_stem(UNTRAINED)}
    agents: dict[str, Agent] = {}
    for files, vote in ((policies, PPO_VOTE), (member_files(run), DQN_VOTE)):
        members = trained_agents(files, env)
        if ENSEMBLE in members:
            members[vote] = members.pop(ENSEMBLE)
        agents |= members
    return agents | trained_agents(untrained, env) | baseline_agents(env, tuple(task_named(TASK).agents))


def told(evaluation: Evaluation) -> dict[str, Any]:
    """Return windows, and reward and outcomes of every agent with their intervals."""
    agents = evaluation.to_json()["agents"]
    return {
        "windows": evaluation.num_episodes,
        "agents": {name: {key: agent[key] for key in ("reward", *TOLD)} for name, agent in agents.items()},
    }


if __name__ == "__main__":
    main(tyro.cli(OrderBookAgentsConfig, prog="python -m vecenv.benchmarks.learning.order_book_agents"))
