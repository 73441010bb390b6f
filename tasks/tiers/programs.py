"""Programs that play a trading tier: what they may read beside bars and account, how they act, what is told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from vecenv.core.engine import Engine
from vecenv.finance.programs import ACCOUNT, BAR_FEATURES, Strategies, shown_features
from vecenv.market.bars import CLOSE
from vecenv.programs.expressions import Feature, Vocabulary
from vecenv.programs.units import BARS, NONE, PRICE, RETURN, WEALTH
from vecenv.tasks.tiers.config import TierConfig
from vecenv.tasks.tiers.law import CAPACITY_DRAWDOWNS, Kind, Tensors, TierState
from vecenv.tasks.tiers.observation import GATE_CHANGE, GATE_SHARE, holding_share
from vecenv.tasks.tiers.orders import SMALLEST_TRADE, in_places, order_places
from vecenv.tasks.tiers.reward import COMPONENTS
from vecenv.tasks.tiers.scenario import TierTrading

OUTPUTS = {"weights": {"weight": WEALTH}, "limit_weights": {"tilt": NONE}, "orders": {"order": NONE}}
"""What a program gives for each symbol by kind of action: a weight, the tilt of a weight, or a share to buy or sell."""

BREADTH = ("gate_closed", "share_down", "mean_change")
"""Features of the whole market, in the order of `market_breadth`."""

OF_MARKET = {
    "tradable": Feature(NONE),  # 1 or 0
    "gate_closed": Feature(NONE),  # 1 or 0; always 0 in a tier without a gate
    "share_down": Feature(NONE),  # of the symbols, those that closed lower
    "mean_change": Feature(RETURN),  # of all symbols on the day
}

OF_ACCOUNT = {
    "average_price": Feature(PRICE, account=True),  # of the position; 0 without one
    "profit": Feature(RETURN, account=True),  # close over the average price, less 1; 0 without a position
    "days_held": Feature(BARS, account=True),
    "drawdown": Feature(RETURN, account=True),  # loss from the account's highest value
    "losing_sells": Feature(NONE, account=True),  # in a row
}

REFUSALS = ("regime_violation", "position_limit", "trade_limit", "sell_unheld", "invalid")
"""Components of the reward that count orders which were cut or refused, and invalid actions."""


class TierStrategies(Strategies):
    """How programs play a tier: of one table of rules, not a curriculum, whose rows play different ones."""

    actions: ClassVar = {output: {"action": action} for action, outputs in OUTPUTS.items() for output in outputs}

    def vocabulary(self, config: TierConfig) -> Vocabulary:
        """Return the names of bars, of what observations show of market and account, and of every account.

        In the action space `discrete` programs give lists of orders, as in `orders`.
        """
        shown = shown_features((*config.features, *config.context))
        features = shown | BAR_FEATURES | OF_MARKET | ACCOUNT | OF_ACCOUNT
        return Vocabulary(features, OUTPUTS["orders" if config.action == "discrete" else config.action])

    def market(self, scenario: TierTrading, names: Sequence[str]) -> dict[str, Tensor]:
        tape, gate = scenario.tape, float(scenario.config.gate)
        breadth = scenario.shared["breadth"].view(tape.num_paths, tape.num_days, len(BREADTH))
        own = {name: breadth[..., place, None] for place, name in enumerate(BREADTH)}
        own |= {"gate_closed": gate * own["gate_closed"], "tradable": tape.tradable.float()}
        known = super().market(scenario, [name for name in names if name not in own])
        return {name: own[name] if name in own else known[name] for name in names}

    def account(self, scenario: TierTrading, state: TierState) -> dict[str, Tensor]:
        tick = scenario.tape.tick_size
        close = scenario.tape.ohlcv[..., CLOSE][state.path, state.day].double()
        average = state.average_price.double() * tick
        own = {
            "average_price": average,
            "profit": torch.where(state.holdings > 0, close / average.clamp(min=1e-12) - 1.0, 0.0),
            "days_held": state.days_held,
            "drawdown": (1.0 - state.portfolio_value / state.peak_value).unsqueeze(-1),
            "losing_sells": state.losing_sells.unsqueeze(-1),
        }
        return super().account(scenario, state) | {name: values.float() for name, values in own.items()}

    def action(self, scenario: TierTrading, output: Tensor) -> Tensor:
        """Return the actions that outputs name. Shape: (N, K) -> (N, K), with tilts (N, K + 1), orders (N, M, 3)."""
        if scenario.config.action == "weights":
            return output
        if scenario.config.action == "limit_weights":
            return torch.cat([output, torch.zeros_like(output[:, :1])], -1)
        return torch.vmap(lambda own: listed(own, scenario.config.max_orders))(output)

    def days(self, config: TierConfig) -> int:
        return config.days

    def first_day(self, scenario: TierTrading) -> int:
        return int(scenario.shared["first_day"].max())

    def opened(self, scenario: TierTrading, path: Tensor, day: Tensor, params: Tensors, shared: Tensors) -> TierState:
        return scenario.opened(path, day, params)

    def refused(self, scenario: TierTrading, before: TierState, after: TierState) -> Tensor:
        """Return the orders of a step that were cut or refused, and 1 for an invalid action."""
        return after.components[:, [COMPONENTS.index(name) for name in REFUSALS]].sum(-1).long()

    def told(self, scenario: TierTrading, last: TierState, reward: Tensor) -> dict[str, Tensor]:
        """Return the parts of the calibrated grade, the sum of the reward, trades, and refusals by component."""
        parts = Engine(scenario, 1).bound().mapped(scenario.grade_parts, last)
        counts = {name: last.totals[:, COMPONENTS.index(name)] for name in REFUSALS}
        return {**parts, "reward": reward, "trades": last.num_trades, **counts}

    def share(self, config: TierConfig, num_symbols: int) -> float:
        return holding_share(config, num_symbols)

    def rules(self, config: TierConfig) -> str:
        losses = ", ".join(f"{100 * loss:g}%" for loss in CAPACITY_DRAWDOWNS)
        fall, mean = f"{100 * GATE_SHARE:g}%", f"{-100 * GATE_CHANGE:g}%"
        gate = f" Purchases are refused on days on which over {fall} of the stocks fall, or all by {mean} in the mean."
        dead = f" Changes below {100 * SMALLEST_TRADE:g}% of the account are not made."
        return (
            "participation x position x discipline. A position is 1 at what perfect foresight earns, 0.5 at what equal "
            "parts bought and held within the limits earn, 0 well below; participation is the exposure beside "
            "foresight's, and discipline falls with orders that break a limit. At most "
            f"{100 * config.max_position:g}% of the account may be in a stock and {100 * config.max_exposure:g}% in "
            f"all. A day has {config.max_orders} orders, the largest ones, and no purchase after {config.max_trades} "
            f"trades; each of the losses {losses} from the account's peak takes a quarter off purchases."
            f"{gate if config.gate else ''}{'' if config.action == 'orders' else dead} "
            f"Commission {100 * config.commission:g}%, slippage {100 * config.slippage:g}%."
        )


def listed(output: Tensor, max_orders: int) -> Tensor:
    """Return the list of the M largest orders: sales first, each kind by symbol. Shape: (K,) -> (M, 3), float32.

    Above 0 is the share of the cash to spend, below 0 that of the position to sell. NaN and infinite numbers make the
    action invalid.
    """
    finite = (output.abs() <= torch.finfo(output.dtype).max).all(-1)
    wanted = torch.where(finite, output, 0.0).clamp(-1.0, 1.0)
    place, slots = order_places(wanted, max_orders), torch.arange(len(output), device=output.device)
    kind = torch.where(wanted < 0, float(Kind.SELL), float(Kind.BUY))
    columns = [in_places(values, place, max_orders) for values in (kind, slots.to(output.dtype), wanted.abs())]
    columns[0] = torch.where(finite, columns[0], float(Kind.INVALID))
    return torch.stack(columns, -1)


PROGRAMS = TierStrategies()
