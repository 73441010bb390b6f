"""Paths of a neural market with a large drawdown of the equal-weight market, and how probable they are."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from vecenv.core.random import episode_key
from vecenv.market.bars import CLOSE, Bars
from vecenv.worldmodel.data.bar_moves import encode_bar, encode_bars, log_bars
from vecenv.worldmodel.data.features import observe_day, observe_history, stacked
from vecenv.worldmodel.sampling.block_paths import Starts, chosen_starts
from vecenv.worldmodel.sampling.neural import NeuralMarket
from vecenv.worldmodel.sampling.splitting import Level, Split, TargetNotReached, Trajectories, split, stage_seed

FEWEST_PATHS = 20
"""Minimum number of paths per level: with fewer, hardly any first path has offspring on the last level."""

ROWS_PER_READ = 1 << 10
"""Symbol-paths whose days the trunk reads at once, which bounds memory."""


def share_of(text: str, name: str) -> float:
    """Return a share given as ``30%`` or ``0.3``; raise ValueError if it is no number between 0 and 100%, exclusive."""
    try:
        share = float(text.removesuffix("%")) / (100.0 if text.endswith("%") else 1.0)
    except ValueError:
        share = float("nan")
    if not 0.0 < share < 1.0:
        raise ValueError(f"{name} must be a share between 0 and 100%, such as 30% or 0.3, got {text!r}")
    return share


def told_share(share: float) -> str:
    """Return a share in percent with two digits, or as a whole number."""
    percent = 100.0 * share
    return f"{percent:.0f}%" if percent >= 9.95 else f"{percent:#.2g}%"


def market_drawdowns(before: Tensor, closes: Tensor) -> Tensor:
    """Return the drawdown of the equal-weight market on each day from its peak so far, that before the first included.

    The market's return is the mean log-return of the symbols, as in `vecenv.worldmodel.sampling.generator.REGIMES`.
    Shapes: (P, K), (P, H, K) -> (P, H).
    """
    level = torch.cat([before.unsqueeze(1), closes], dim=1).log().mean(-1)
    return 1.0 - (level - level.cummax(1).values).exp()[:, 1:]


def stress_paths(
    market: NeuralMarket,
    past: Bars,
    matrices: Tensor | None,
    drawdown: float,
    num_paths: int,
    num_days: int,
    seed: int,
    show: Callable[[Level], None] = lambda level: None,
) -> Split:
    """Draw paths on which the equal-weight market falls from its peak, by multilevel splitting.

    A path goes on from one of the histories, whose number is its origin; its scores are drawdowns, its days of shape
    (H, K, 5), float64. `matrices`, if given, are used instead of the histories' correlations.

    Raises:
        ValueError: there are too few paths, a symbol has no bar on the last day of the histories, or no path falls as
            far.
    """
    if num_paths < FEWEST_PATHS:
        raise ValueError(f"paths must be at least {FEWEST_PATHS} with a drawdown, got {num_paths}")
    try:
        return split(MarketPaths(market, past, num_days, matrices), drawdown, num_paths, seed, show)
    except TargetNotReached as error:
        raise ValueError(
            f"no path comes to a drawdown of {told_share(drawdown)} within {num_days} days, at most to "
            f"{told_share(error.highest)}: draw more paths or more days, or ask for a smaller drawdown"
        ) from error


class MarketPaths:
    """A neural market after histories as a process, whose scores are drawdowns of the equal-weight market.

    Correlations along a path stay those of its beginning, but for their level. A stopped path goes on with the level of
    its last day at once, others have it up to `LEVEL_STRIDE` - 1 days later, so the process is Markov but for that.
    """

    def __init__(self, market: NeuralMarket, past: Bars, num_days: int, matrices: Tensor | None = None) -> None:
        self._market, self._num_days = market, num_days
        self._starts = market.starts(past, matrices)
        ohlcv = past.ohlcv.to(market.device)
        observed = observe_history(encode_bars(ohlcv))
        self._features, self._last = observed.features[:, -market.reach :], ohlcv[:, -1, :, CLOSE]

    def begin(self, num_paths: int, seed: int) -> Trajectories:
        drawn = self._market.draw_together(self._starts, num_paths, self._num_days, seed)
        origins = _chosen(seed, num_paths, len(self._features), drawn.device)
        return self._trajectories(drawn, origins, torch.arange(num_paths, device=drawn.device))

    def go_on(self, stopped: Trajectories, last: Tensor, num_paths: int, seed: int) -> Trajectories:
        parts = torch.arange(len(last), device=last.device).split(max(1, ROWS_PER_READ // self._last.shape[1]))
        sizes = np.array([len(part) for part in parts])
        # Numbers of paths by part, and then a choice within each, are together a uniform choice with replacement.
        counts = np.random.default_rng([seed, len(parts)]).multinomial(num_paths, sizes / sizes.sum())
        parents, days = [], []
        for number, (part, count) in enumerate(zip(parts, counts.tolist(), strict=True)):
            if count:
                own = stage_seed(seed, number)
                chosen = part[_chosen(own, count, len(part), part.device)]
                parents.append(chosen)
                starts = self._stopped_starts(stopped.only(part), last[part])
                longest = max(1, self._num_days - 1 - int(last[part].min()))
                later = self._market.draw_together(starts, count, longest, own)
                days.append(_joined(stopped.days[chosen], last[chosen], later))
        of_all = torch.cat(parents)
        return self._trajectories(torch.cat(days), stopped.origins[of_all], of_all)

    def _trajectories(self, ohlcv: Tensor, origins: Tensor, parents: Tensor) -> Trajectories:
        drawdowns = market_drawdowns(self._last[origins], ohlcv[..., CLOSE])
        return Trajectories(ohlcv, drawdowns, origins, parents)

    def _stopped_starts(self, stopped: Trajectories, last: Tensor) -> Starts:
        """Return the start states after the last days of stopped paths. Shape: (S,)."""
        origins, device = stopped.origins, last.device
        state = self._starts.state.taken(lambda part: part[origins])
        present = torch.ones(stopped.days.shape[0], stopped.days.shape[2], dtype=torch.bool, device=device)
        features, states = [], []
        for logs in log_bars(stopped.days[:, : int(last.max()) + 1]).unbind(1):
            shown, state = observe_day(state, encode_bar(state.moves, logs), present)
            features.append(shown.float())
            states.append(state)
        paths = torch.arange(len(last), device=device)
        after = stacked(states).taken(lambda part: part[paths, last])
        seen = torch.cat([self._features[origins], torch.stack(features, 1)], dim=1)
        ends = self._features.shape[1] + last
        # As many days of each path, so that the trunk reads all at once.
        window = min(self._market.reach, int(ends.min()) + 1)
        days = ends[:, None] + torch.arange(1 - window, 1, device=device)
        known, cache = self._market.read(seen[paths[:, None], days])
        weekday = self._starts.weekday[origins] + last + 1
        return Starts(known, cache, after, self._starts.matrices[origins], weekday, self._starts.follows)


def _chosen(seed: int, num_paths: int, count: int, device: torch.device) -> Tensor:
    """Return which of a number of starts each path of a seed goes on from. Shape: (P,), int64."""
    return chosen_starts(episode_key(seed, torch.arange(num_paths, device=device)[:, None], 0), count)


def _joined(before: Tensor, last: Tensor, later: Tensor) -> Tensor:
    """Return paths up to their last days, and then on other days. Shapes: (P, H, K, 5), (P,), (P, D, K, 5)."""
    day = torch.arange(before.shape[1], device=last.device)
    place = (day - last[:, None] - 1).clamp(0, later.shape[1] - 1)
    own = later[torch.arange(len(later), device=last.device)[:, None], place]
    return torch.where((day <= last[:, None])[..., None, None], before, own)
