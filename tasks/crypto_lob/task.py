"""Registration record of trading on replayed order books."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from vecenv.learn.domain import Domain
from vecenv.registry import Actions, Task
from vecenv.system.later import later
from vecenv.tasks.crypto_lob.config import CryptoLobConfig, Part

if TYPE_CHECKING:
    from torch import Tensor

    from vecenv.tasks.crypto_lob.law import LobState

TEXT_SECONDS, TEXT_STEPS, TEXT_LEVELS = 30.0, 20, 5
"""Seconds of a step, steps of an episode and levels of the book for agents that act by text."""


def part(config: CryptoLobConfig, part: Part) -> CryptoLobConfig:
    """Return the config of a part of the tape; validation and test are disjoint windows, one after the other."""
    return replace(config, part=part, random_start=config.random_start and part == "train")


def spoken(config: CryptoLobConfig) -> CryptoLobConfig:
    """Return the config that shows levels of the book, which texts hold."""
    return replace(config, depth=config.depth or TEXT_LEVELS)


def starts_of(state: LobState) -> Tensor:
    """Return the start of each episode: those with the same one are one window. Shape: (N,), int64."""
    return state.start_row.long()


ACTIONS: dict[str, Actions] = {"target": "one choice", "step": "one choice", "continuous": "numbers"}
"""What actions are, by their names."""

CRYPTO_LOB = Task(
    name="crypto_lob",
    version="1",
    scenario=later("vecenv.tasks.crypto_lob.scenario:CryptoLob"),
    config=CryptoLobConfig,
    agents=later("vecenv.tasks.crypto_lob.agents:BASELINES"),
    actions=lambda config: ACTIONS.get(config.action, "other"),
    domain=Domain(
        scale="0.5 at no profit, 0.73 at a return of +1% of the initial cash, 0.27 at -1%",
        reference="hold",
        hindsight="oracle",
        blocks=starts_of,
        pictures=later("vecenv.tasks.crypto_lob.figures:lob_figures"),
        part=part,
    ),
    outcomes={
        "total_return": "share",
        "episode_sharpe": "count",
        "max_drawdown": "share",
        "romad": "count",
        "trades": "count",
        "win_share": "share",
        "turnover": "count",
        "exposure": "share",
        "sharpe": "count",
        "costs": "currency",
        "unfilled": "count",
    },
    text=later("vecenv.tasks.crypto_lob.text:LobText"),
    spoken=spoken,
    text_config=lambda: CryptoLobConfig(step_gap=TEXT_SECONDS, episode_steps=TEXT_STEPS, depth=TEXT_LEVELS),
)
