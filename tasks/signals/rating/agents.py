r"""Baselines of rating symbols: of the list of words, of the known law, and of hindsight.

The ceilings are what can be known of the next moves on the market of synthetic news. The belief of a symbol is the
probability that its direction is up less that of down, given what is known. Since the direction persists, its mean j
days later is the belief times $(1 - 2 \mathrm{flip})^j$, and the expected move over h days is, to first order in
returns,

    strength x belief x ((1 - q^h) / (1 - q)),    q = 1 - 2 flip.

So on a given market the belief ranks moves as their conditional expectation does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from vecenv.core.env import VecEnv
from vecenv.learn.evaluation import Agent, Random
from vecenv.market.panels import NEUTRAL, Panels
from vecenv.tasks.signals.news.headlines import HEADLINES, RISKS, TONES
from vecenv.tasks.signals.news.lexicon import LexiconScorer
from vecenv.tasks.signals.news_market import NewsLaw, forward_filter
from vecenv.tasks.signals.rating.config import LARGEST_SIGNAL
from vecenv.tasks.signals.rating.law import daily_returns
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


def headline_signs(panels: Panels) -> tuple[Tensor, Tensor, Tensor]:
    """Return tone and risk of the headlines, -1, 0 or 1, and where there is one. Shape of each: (P, T, K).

    Raises ValueError if the texts are not those of the market of synthetic news.
    """
    if panels.text is None or panels.texts != HEADLINES:
        raise ValueError("tone and risk are known of synthetic headlines alone")
    there, headline = panels.text >= 0, panels.text.clamp(min=0)
    tone, risk = (torch.tensor(values, device=headline.device)[headline] for values in (TONES, RISKS))
    return tone, risk, there


def filtered_belief(law: NewsLaw, returns: Tensor, panels: Panels) -> Tensor:
    """Return the belief, in [-1, 1], at each close, given all returns and headlines up to it. Shape: (P, T, K)."""
    return _belief(forward_filter(law, returns, *headline_signs(panels)))


def read_belief(law: NewsLaw, returns: Tensor, panels: Panels, recent_days: int) -> Tensor:
    """Return the belief, in [-1, 1], of a reader of one day's headline and the last returns. Shape: (P, T, K), float64.

    Before them nothing is known: either sign is as likely, as always without news. The forward filter runs over the
    shown days, with news on the last alone. It is 0 on the first ``recent_days`` days, on which no episode starts.
    """
    tone, risk, there = headline_signs(panels)
    belief, width = torch.zeros_like(returns), recent_days + 1
    windows = returns.unfold(1, width, 1).movedim(-1, 2).flatten(0, 1)

    def on_last(values: Tensor) -> Tensor:
        """(P, T, K) to (P T', width, K), of which the last day is that of the window."""
        last = values[:, width - 1 :].flatten(0, 1).unsqueeze(1)
        return torch.cat([torch.zeros_like(last).expand(-1, width - 1, -1), last], dim=1)

    known = forward_filter(law, windows, on_last(tone), on_last(risk), on_last(there))[:, -1]
    belief[:, width - 1 :] = _belief(known).unflatten(0, (len(returns), -1))
    return belief


def _belief(known: Tensor) -> Tensor:
    """Return the belief from the probabilities of (direction, danger). Shape: (..., 4) -> (...)."""
    return known[..., 2:].sum(-1) - known[..., :2].sum(-1)


class Knowing(Table):
    """Knows the law of the market of synthetic news: ten times the belief, see this module.

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
