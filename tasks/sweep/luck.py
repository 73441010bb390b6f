"""What the best of many trials owes to luck: the expected maximum of their noise, taken off the winner's figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from vecenv.finance.metrics import expected_maximum_sharpe
from vecenv.learn.intervals import Interval, expected_maximum, standard_error


def deflated(winner: Sequence[Mapping[str, float]], sharpes: Sequence[float], looks: int) -> dict[str, Any]:
    """Return the winner's figures on the validation less what the best of so many ``looks`` has by luck.

    A trial keeps the best of its validations, and the winner is the best of these: each validation is a look. Of
    reward and excess the errors are taken as independent and normal, with the winner's standard error over episodes, of
    which seeds that are validated on the same ones have no less; luck's share is their
    `vecenv.learn.intervals.expected_maximum`. Sharpe ratios, of which the market's own luck is a part, are told above
    the mean of all trials', and luck's share is what the best of as many without a difference is expected to have above
    it, by their deviation
    (`vecenv.finance.metrics.expected_maximum_sharpe`; Bailey and López de Prado, "The Deflated Sharpe Ratio", Journal
    of Portfolio Management 40(5), 2014, eq. 1). Looks that resemble each other find less by luck, so rather too much is
    taken off than too little.

    Args:
        winner: figures of its best validation, of each seed: ``reward``, ``reward_low``, ``reward_high``, and where
            there are accounts ``excess_percent``, ``excess_low``, ``excess_high`` and ``sharpe``.
        sharpes: Sharpe ratios of all trials; empty without accounts.
        looks: number of validations that could have been the winner's.

    Returns:
        By figure its ``value``, what is expected by ``luck``, and ``deflated``, the difference. Those that are not
        known are left out, such as the standard error of too few episodes.
    """
    found = {}
    for name, stem in (("reward", "reward"), ("excess_percent", "excess")):
        if all({name, f"{stem}_low", f"{stem}_high"} <= seed.keys() for seed in winner):
            own = [Interval(seed[name], seed[f"{stem}_low"], seed[f"{stem}_high"]) for seed in winner]
            error = _mean([standard_error(interval) for interval in own])
            found[name] = (_mean([seed[name] for seed in winner]), error * expected_maximum(looks))
    if len(sharpes) > 1 and all("sharpe" in seed for seed in winner):
        known = torch.tensor(sharpes, dtype=torch.float64)
        above = _mean([seed["sharpe"] for seed in winner]) - float(known.mean())
        found["sharpe_above_trials"] = (above, expected_maximum_sharpe(looks, float(known.std())))
    return {name: {"value": value, "luck": luck, "deflated": value - luck} for name, (value, luck) in found.items()}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
