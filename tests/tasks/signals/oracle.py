"""The account of trading on scores in plain Python, written from ``tasks/signals/rules.md`` alone."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tests.tasks.stock_trading.oracle import Account, Market, Rules


@dataclass(frozen=True)
class SignalRules(Rules):
    """The page's settings under its names."""

    sentiment_strength: float = 0.0
    risk_strength: float = 0.0
    risk_form: str = "reward"


class SignalAccount(Account):
    """One account on one path; ``level`` is the risk level M of the last step."""

    rules: SignalRules

    def __init__(
        self,
        rules: SignalRules,
        market: Market,
        start_day: int,
        length: int,
        sentiment: Sequence[Sequence[float]],
        risk: Sequence[Sequence[float]],
    ) -> None:
        """Open the account with the scores of each ``[day][symbol]``, 3 where there is none."""
        super().__init__(rules, market, start_day, length)
        self.sentiment, self.risk = sentiment, risk
        self.level = 1.0

    def _entries(self, action: Sequence[float]) -> list[float | None]:
        entries = super()._entries(action)
        strength = float(np.float32(self.rules.sentiment_strength))
        if not strength:
            return entries
        return [
            entry if entry is None or k >= len(self.symbols) else self._moved(entry, k, strength)
            for k, entry in enumerate(entries)
        ]

    def _moved(self, entry: float, k: int, strength: float) -> float:
        change = np.rint(np.float32(strength) * np.float32(self.sentiment[self.day][k] - 3.0) * 2.0**30) / 2.0**30
        moved = float(np.float32(entry) * np.float32(1.0 - change if entry < 0 else 1.0 + change))
        return moved if self.rules.action == "shares" else max(-1.0, min(1.0, moved))

    def _shaped(self, reward: float) -> float:
        rules, day = self.rules, self.day - 1
        strength = float(np.float32(rules.risk_strength))
        positions = list(zip(self.holdings, self.market.close[day], self.risk[day], strict=True))
        worth = sum(abs(held) * price for held, price, _ in positions)
        self.level = 1.0
        if worth:
            scale = np.float32(2.0**20 / worth)
            weighted = [np.float32(abs(held)) * np.float32(price * (q - 3.0)) * scale for held, price, q in positions]
            self.level = 1.0 + strength * sum(float(np.rint(each)) for each in weighted) / 2.0**20
        if not strength or rules.risk_form == "trajectory":
            return reward
        if reward > 0 or rules.risk_form == "published":
            return reward / self.level
        return reward * self.level
