"""Scenario of trading on scores of documents: the account of stock trading, with sentiment and risk in its rules.

`rules.md` beside this file is the specification.
"""

from __future__ import annotations

from functools import cached_property
from itertools import cycle

import torch
from torch import Tensor

from vecenv.core.capabilities import RiskAware
from vecenv.learn.cppo import risk_weighed
from vecenv.market.panels import HIGHEST, NEUTRAL, SCORES
from vecenv.market.tape import MarketTape
from vecenv.tasks.signals.config import SignalsConfig
from vecenv.tasks.stock_trading.law import StockState, Tensors
from vecenv.tasks.stock_trading.observation import warmed_up
from vecenv.tasks.stock_trading.scenario import StockTrading

MOVE_STEPS = 2.0**30
"""Changes of an action are multiples of 2⁻³⁰. Rounding keeps a compiler from fusing their product with a sum."""

RISK_STEPS = 2.0**20
"""Weighted risks of whole shares are multiples of 2⁻²⁰, so that their sum is exact in single precision in any order."""


def moved_by_sentiment(action: Tensor, sentiment: Tensor, strength: Tensor) -> Tensor:
    """Return actions made larger where the news agree with them, and smaller where they do not. Shape: (K,), float32.

    a (1 + s (u - 3) sign a), FinRL-DeepSeek (Benhenda, arXiv 2502.07393, 2025), section on LLM-infused PPO, with a
    strength for both signs, the change per point. Sentiment is neutral where there is none. All in single precision:
    float64 in the wide loop over symbols costs twice as much.
    """
    change = torch.round(strength * (sentiment - NEUTRAL) * MOVE_STEPS) * (1.0 / MOVE_STEPS)
    return action * torch.where(action < 0, 1.0 - change, 1.0 + change)


def risk_level(
    holdings: Tensor, worth: Tensor, risk_worth: Tensor, strength: Tensor, whole_shares: bool = True
) -> Tensor:
    """Return the risk level of a portfolio: the mean of 1 + s (q - 3), weighted by its positions' values. Shape: ().

    ``holdings`` are shares, (K,), negative when short; ``worth`` is the value of all positions, short ones as positive,
    in the unit of ``risk_worth``; ``strength`` the change per point. ``whole_shares`` rounds each position's part to
    `RISK_STEPS`; else the level has a gradient. 1 without holdings.
    """
    worth = worth.double()
    scale = torch.where(worth > 0, RISK_STEPS / torch.where(worth > 0, worth, 1.0), 0.0).to(risk_worth.dtype)
    parts = holdings.abs().to(risk_worth.dtype) * risk_worth * scale
    mean = (torch.round(parts) if whole_shares else parts).sum(-1).double() / RISK_STEPS
    return (1.0 + strength.double() * mean).to(torch.float32)


def risk_worth(close: Tensor, risk: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return price times risk above neutral, what a share adds to a portfolio's weighted risk. Shape: as ``close``."""
    return (close.double() * (risk.double() - NEUTRAL)).to(dtype)


def weighed(reward: Tensor, level: Tensor, published: bool) -> Tensor:
    """Return a reward weighed by a risk level above 0: gains divided, losses multiplied (divided if ``published``)."""
    level = level.to(reward.dtype)
    return reward / level if published else risk_weighed(reward, level)


SHUFFLE_SEED = 0x5CA1E
"""Seed of the order in which shuffled scores stand."""


class SignalTrading(RiskAware, StockTrading):
    """Scenario of stock trading on a `MarketTape` with panels of scores; raises ValueError for a tape without any."""

    name = "signals"
    version = "1"
    config: SignalsConfig

    def __init__(self, tape: MarketTape, config: SignalsConfig | None = None) -> None:
        config = config or SignalsConfig()
        if tape.panels is None:
            raise ValueError(f"{tape.source}: no scores of documents, which the task {self.name} reads")
        super().__init__(tape, config)
        self.panels = tape.panels.shuffled(tape.tradable, SHUFFLE_SEED) if config.shuffled else tape.panels
        flat = tape.num_paths * tape.num_days
        scores = self.panels.scores.reshape(flat, tape.num_symbols, len(SCORES))
        strengths = {f"{name}_strength": getattr(config, f"{name}_strength") for name in SCORES}
        self.params = {
            **self.params,
            **{name: torch.tensor(value, dtype=torch.float32, device=tape.device) for name, value in strengths.items()},
        }
        # A panel for each rule: a strength of 0 that differs among sub-environments is given later.
        self.shared = {
            **self.shared,
            "sentiment": scores[..., SCORES.index("sentiment")].contiguous(),
            "risk_worth": risk_worth(self.shared["close"], scores[..., SCORES.index("risk")], self.money.single),
            "features": self._with_panels(self.shared["features"]),
        }
        masks = {name: f"{name}_known" for name in SCORES}
        shown = tuple(column for name in config.observed for column in (name, masks[name]))
        self.shown_features = (*config.features, *shown)
        self.item_features = (*self.shown_features, "weight")

    def feature_units(self) -> dict[str, str]:
        scale = self.config.feature_scale
        own = ("score / 5", "0 or 1") if scale is None else (f"score x {scale:g}", f"0 or {scale:g}")
        shown = self.shown_features[len(self.config.features) :]
        return super().feature_units() | dict(zip(shown, cycle(own), strict=False))

    def _with_panels(self, features: Tensor) -> Tensor:
        """Return the features of all days with the observed panels. Shapes: (P T, K I) -> (P T, K (I + 2 S))."""
        tape, config = self.tape, self.config
        places = [SCORES.index(name) for name in config.observed]
        if not places:
            return features
        shown = torch.stack([self.panels.scores, self.panels.known.float()], dim=-1)[..., places, :].flatten(-2)
        scale = config.feature_scale
        # Scores of 1 to 5 are shown as a share of the best, masks as 0 and 1.
        own = shown.new_tensor([1.0 / HIGHEST, 1.0] * len(places))
        shown = torch.where(warmed_up(tape).unsqueeze(-1), shown * (own if scale is None else scale), 0.0)
        own = features.view(len(features), tape.num_symbols, -1)
        return torch.cat([own, shown.reshape(len(features), tape.num_symbols, -1)], dim=-1).flatten(1)

    def _adjusted(self, action: Tensor, row: Tensor, params: Tensors, shared: Tensors) -> Tensor:
        if not self._uses("sentiment_strength"):
            return action
        symbols = self.tape.num_symbols
        moved = moved_by_sentiment(action[..., :symbols], shared["sentiment"][row], params["sentiment_strength"])
        if self.config.action == "shares":
            return moved
        # Tilts have a further entry for cash, which no news are about.
        return torch.cat([moved.clamp(-1.0, 1.0), action[..., symbols:]], dim=-1)

    @cached_property
    def _largest_action(self) -> float:
        """Largest size of an action in shares, moved by the most extreme score, and rounded up."""
        return 1.0 + 2.0 * float(self.params["sentiment_strength"].max()) + 1e-6

    @property
    def has_risk_level(self) -> bool:
        return not self._risk_in_rewards

    @property
    def _risk_in_rewards(self) -> bool:
        return self.config.risk_form != "trajectory" and self._uses("risk_strength")

    def risk_level(self, state: StockState, next_state: StockState, params: Tensors, shared: Tensors) -> Tensor:
        """Return the risk level of what was held over a step, 1 for neutral. Shape: ()."""
        row = state.path * self.tape.num_days + state.day.clamp(max=self.tape.num_days - 2)
        held, config = next_state.holdings, self.config
        if config.whole_shares and config.fill == "close" and not config.shorting:
            # What the account was worth before the orders and did not spend: exact, and no sum over symbols.
            worth = state.portfolio_value - next_state.costs - next_state.cash
        else:
            worth = (held.abs().double() * shared["close"][row].double()).sum(-1)
        return risk_level(held, worth, shared["risk_worth"][row], params["risk_strength"], config.whole_shares)

    def _shaped(
        self, reward: Tensor, state: StockState, next_state: StockState, params: Tensors, shared: Tensors
    ) -> Tensor:
        if not self._risk_in_rewards:
            return reward
        return weighed(reward, self.risk_level(state, next_state, params, shared), self.config.risk_form == "published")
