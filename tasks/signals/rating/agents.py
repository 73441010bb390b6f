"""Baselines of rating symbols: of the list of words, of the known law, and of hindsight."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from vecenv.core.env import VecEnv
from vecenv.learn.agents import Agent, Random
from vecenv.market.panels import NEUTRAL
from vecenv.tasks.signals.news.lexicon import LexiconScorer
from vecenv.tasks.signals.news_law import NewsLaw
from vecenv.tasks.signals.rating.belief import filtered_belief, read_belief
from vecenv.tasks.signals.rating.config import LARGEST_SIGNAL
from vecenv.tasks.signals.rating.observation import daily_returns
from vecenv.tasks.signals.rating.scenario import NewsSignals

FULL_DEVIATIONS = 2.0
"""Size of a move, in deviations of all moves, from which hindsight gives the strongest signal."""


def scenario_of(env: VecEnv) -> NewsSignals:
    """Return the scenario of an environment of the task."""
    assert isinstance(env.scenario, NewsSignals)
    return env.scenario


def signal_action(env: VecEnv, signal: Tensor) -> Tensor:
    """Return the actions that say signals. Shape: (N, K), int64 -> (N, K)."""
    if scenario_of(env).config.action == "continuous":
        return (signal.double() / LARGEST_SIGNAL).float()
    return signal + LARGEST_SIGNAL


def sized_signal(strength: Tensor) -> Tensor:
    """Return signals of strengths in [-1, 1]: ten times it, to the nearest whole one away from 0. Shape: any."""
    size = (LARGEST_SIGNAL * strength.abs()).round().clamp(1, LARGEST_SIGNAL)
    return (strength.sign() * size).to(torch.int64)


class Silent:
    """Has no opinion."""

    def act(self, env: VecEnv) -> Tensor:
        return signal_action(env, torch.zeros_like(env.state.holdings, dtype=torch.int64))


class Table(ABC):
    """Looks signals up that depend on path and day alone; they are computed once for a scenario."""

    def __init__(self) -> None:
        self._scenario: NewsSignals | None = None
        self._signal = torch.empty(0)

    @abstractmethod
    def signals(self, scenario: NewsSignals) -> Tensor:
        """Return the signals of all days. Shape: (P, T, K), int64."""

    def act(self, env: VecEnv) -> Tensor:
        scenario = scenario_of(env)
        if self._scenario is not scenario:
            self._scenario, self._signal = scenario, self.signals(scenario)
        return signal_action(env, self._signal[env.state.path, env.state.day])


class Lexicon(Table):
    """Says what the list of words thinks of the day's text: ten times (score - 3) / 2, 0 without a text."""

    def signals(self, scenario: NewsSignals) -> Tensor:
        panels, device = scenario.panels, scenario.tape.device
        if panels.text is None or not panels.texts:
            return torch.zeros_like(panels.known[..., 0], dtype=torch.int64)
        scores = LexiconScorer().score(panels.texts)
        strength = torch.from_numpy(scores.sentiment - NEUTRAL).nan_to_num().to(device) / 2.0
        signal = (LARGEST_SIGNAL * strength).round().to(torch.int64)
        return torch.where(panels.text >= 0, signal[panels.text.clamp(min=0)], 0)


class Knowing(Table):
    """Knows the law of the market of synthetic news: ten times the belief, see `belief`.

    On other markets it knows nothing and says 0.
    """

    @abstractmethod
    def belief(self, scenario: NewsSignals, law: NewsLaw, returns: Tensor) -> Tensor:
        """Return the belief of all days. Shape: (P, T, K)."""

    def signals(self, scenario: NewsSignals) -> Tensor:
        tape, law = scenario.tape, scenario.tape.law
        if not isinstance(law, NewsLaw):
            return torch.zeros_like(tape.tradable, dtype=torch.int64)
        belief = self.belief(scenario, law, daily_returns(tape.price_ticks().double(), tape.tradable))
        # A belief of rounding errors is none.
        return sized_signal(torch.where(belief.abs() > 1e-9, belief, 0.0))


class Filter(Knowing):
    """Knows all prices and headlines up to the day: nobody can know more."""

    def belief(self, scenario: NewsSignals, law: NewsLaw, returns: Tensor) -> Tensor:
        return filtered_belief(law, returns, scenario.panels)


class Reader(Knowing):
    """Knows what the text of the day shows: nobody who reads the day alone can know more."""

    def belief(self, scenario: NewsSignals, law: NewsLaw, returns: Tensor) -> Tensor:
        return read_belief(law, returns, scenario.panels, scenario.config.recent_days)


class Hindsight(Table):
    """Says the sign and size of the moves to come."""

    def signals(self, scenario: NewsSignals) -> Tensor:
        move = scenario.shared["move"]
        seen = move[scenario.shared["tradable"]]
        deviation = seen.square().mean().sqrt().clamp(min=1e-12)
        shape = scenario.tape.tradable.shape
        return sized_signal((move / (FULL_DEVIATIONS * deviation)).clamp(-1.0, 1.0)).view(shape)


AGENTS: dict[str, Callable[[], Agent]] = {
    "silent": Silent,
    "random": Random,
    "lexicon": Lexicon,
    "reader": Reader,
    "filter": Filter,
    "hindsight": Hindsight,
}
