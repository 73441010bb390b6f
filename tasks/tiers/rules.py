"""Rule lookup, market lookup and action spaces of the trading tiers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torchrl.data import Bounded, MultiCategorical, TensorSpec, Unbounded

from vecenv.core.capabilities import AlternativeActions, ColumnScaled, Itemised, Items
from vecenv.core.scenario import Scenario
from vecenv.kernels.money import Money, single_rounded_down
from vecenv.market.tape import MarketTape
from vecenv.market.ticks import fewer_ticks
from vecenv.tasks.tiers.config import TierConfig
from vecenv.tasks.tiers.graders import GRADERS
from vecenv.tasks.tiers.items import OWN_FEATURES, split_symbols
from vecenv.tasks.tiers.limit_weights import Market, WeightLimits, limit_weights_to_orders
from vecenv.tasks.tiers.market import column_scale, market_tensors, rule_table
from vecenv.tasks.tiers.order_list import Limits, capacity
from vecenv.tasks.tiers.order_spaces import FRACTION_BINS, choices_to_orders, weights_to_orders
from vecenv.tasks.tiers.state import TierState

Tensors = Mapping[str, Tensor]

MAX_CASH_TICKS = 2**36
"""Upper bound of the starting cash in ticks, so that fractions of it stay exact while the account doubles."""


class TierRules(Itemised, ColumnScaled, AlternativeActions, Scenario[TierState]):
    """Rules, market and action space of the trading tiers; `scenario.TierTrading` adds the account.

    Args:
        tape: a market with `TIER_FEATURES` and the tier's symbols.
        config: the rules, and the settings shared by a mixed batch: spaces, reward and grader.
        tiers: rules of the tiers of a mixed batch, whose symbols are among those of ``config``; parameter ``rule``
            selects the row of a sub-environment's next episode.

    Raises:
        ValueError: the tape lacks a symbol, a feature or a series, or is too short for an episode.
    """

    longest: int

    def __init__(
        self, tape: MarketTape, config: TierConfig | None = None, tiers: Sequence[TierConfig] | None = None
    ) -> None:
        config = config or TierConfig()
        self.config, self.tiers = config, tuple(tiers or (config,))
        self.drawn_symbols = tape.symbols
        self.tape = tape.symbols_as_paths() if config.random_symbol else tape.select(config.symbols)
        if self.tape.feature_names != config.features:
            raise ValueError(f"{tape.source}: the tiers need the features {', '.join(config.features)}")
        lacking = [name for name in config.context if name not in self.tape.context_names]
        if lacking:
            raise ValueError(f"{tape.source}: no series {', '.join(lacking)}; it has {self.tape.context_names}")
        richest = max(tier.initial_cash for tier in self.tiers)
        if (poorest := min(tier.initial_cash for tier in self.tiers)) < self.tape.tick_size:
            raise ValueError(f"initial_cash must be at least a tick of {self.tape.tick_size:g}, got {poorest:g}")
        if richest / self.tape.tick_size >= MAX_CASH_TICKS:
            raise ValueError(
                f"initial_cash {richest:g} is {richest / self.tape.tick_size:.3g} ticks of {self.tape.tick_size:g}; "
                "exact orders need fewer than 2^36: "
                + fewer_ticks(richest, MAX_CASH_TICKS, self.tape.tick_size, self.tape.symbols, self.tape.ohlcv)
            )
        self.money = Money(whole_shares=True, dtype=torch.float64)
        self.precision = torch.float32 if config.dtype == "float32" else torch.float64
        self.longest = max(tier.days for tier in self.tiers)
        self.shared = market_tensors(self.tape, config, self.longest)
        if config.observation == "scaled":
            self.shared["column_scale"] = column_scale(self.tape, config, richest)
        self.params = rule_table(self.tape, config, self.tiers, self.mixed)
        self.action_spec = self._action_spec()
        self.item_features = (*config.features, *OWN_FEATURES)

    def randomise(self, params: Tensors, num_envs: int) -> None:
        """Replace parameters as `Scenario.randomise` does; slippage is rounded, and ``rule`` must be in range."""
        rule = params.get("rule")
        if rule is not None and bool(((rule < 0) | (rule >= len(self.tiers))).any()):
            raise ValueError(f"parameter 'rule' must be in [0, {len(self.tiers)}), got {rule.unique().tolist()}")
        super().randomise(params, num_envs)
        if "slippage" in self.varied:
            self.params = {**self.params, "slippage": single_rounded_down(self.params["slippage"])}

    @property
    def task_config(self) -> Any:  # noqa: ANN401
        """Config of the task, from which the scenario is made; a curriculum's is another than `config`."""
        return self.config

    @property
    def mixed(self) -> bool:
        return len(self.tiers) > 1

    def rule(self, name: str, state: TierState, params: Tensors) -> Tensor:
        return params[name][state.rule] if self.mixed else params[name][0]

    def owned(self, state: TierState, params: Tensors) -> Tensor | None:
        """Return 1 for symbols of the tier, else 0; None if all are. Shape: (K,), float32."""
        return params["owned"][state.rule] if self.mixed else None

    def row(self, state: TierState) -> Tensor:
        """Return the row of the market's tensors. Shape: (), int64."""
        # Ended rows are stepped too and their results ignored; the index must stay on the tape.
        return state.path * self.tape.num_days + state.day.clamp(max=self.tape.num_days - 2)

    def orders(self, state: TierState, action: Tensor, params: Tensors, shared: Tensors) -> Tensor:
        """Return an action of the space, or an order list in any, as kind, symbol, fraction. Shape: (M, 3), float32."""
        if action.ndim == 2 and action.shape[-1] == 3:
            return action
        config, row, owned = self.config, self.row(state), self.owned(state, params)
        if config.action == "discrete":
            return choices_to_orders(action, self.tape.num_symbols)
        if config.action == "limit_weights":
            tradable = shared["shown"][row].unflatten(-1, (-1, 2 + len(config.features)))[:, 1]
            tradable = tradable if owned is None else tradable * owned
            return limit_weights_to_orders(
                self.money,
                action,
                Market(shared["close"][row].double(), tradable.double(), state.holdings.double()),
                state.cash,
                state.portfolio_value,
                WeightLimits(*(self.rule(name, state, params) for name in WeightLimits._fields)),
                self.limits(state, row, params, shared),
                config.tilt_gain,
                config.max_orders,
            )
        value = state.portfolio_value
        weight = state.holdings * shared["close"][row] / value.to(torch.float32)
        # A product keeps NaN.
        action = action if owned is None else action * owned
        return weights_to_orders(action, weight, (state.cash / value).to(torch.float32), config.max_orders)

    def understood_actions(self) -> Sequence[TensorSpec]:
        shape = (self.config.max_orders, 3)
        return [self.action_spec, Unbounded(shape, device=self.action_spec.device)]

    def limits(self, state: TierState, row: Tensor, params: Tensors, shared: Tensors) -> Limits:
        number = partial(self.rule, state=state, params=params)
        value = state.portfolio_value
        return Limits(
            commission=number("commission"),
            slippage=number("slippage"),
            closed=(number("gate") > 0) & (shared["breadth"][row, 0] > 0),
            capacity=capacity(value, state.peak_value),
            max_trades=number("max_trades"),
            position_value=torch.floor(number("max_position") * value),
            exposure_value=torch.floor(number("max_exposure") * value),
        )

    def items(self, observation: Tensor) -> Items:
        return split_symbols(
            self.unscaled(observation), self.config.features, len(self.config.context), self.tape.num_symbols
        )

    def metadata(self) -> dict[str, Any]:
        versions = {name: grader.version for name, grader in GRADERS.items()}
        return super().metadata() | {"graders": versions, "config": asdict(self.config), "market": self.tape.metadata()}

    def _action_spec(self) -> TensorSpec:
        config, num_symbols, device = self.config, self.tape.num_symbols, self.tape.device
        if config.action == "weights":
            return Bounded(0.0, 1.0, (num_symbols,), dtype=torch.float32, device=device)
        if config.action == "limit_weights":
            return Bounded(-1.0, 1.0, (num_symbols + 1,), dtype=torch.float32, device=device)
        if config.action == "discrete":
            choices = [[1 + 2 * num_symbols, FRACTION_BINS]] * config.max_orders
            return MultiCategorical(torch.tensor(choices, device=device), dtype=torch.int64, device=device)
        # Samples of this spec are rarely whole numbers in kind and symbol: see the random agents for valid orders.
        high = torch.tensor([2.0, max(1.0, num_symbols - 1.0), 1.0], device=device).expand(config.max_orders, 3)
        return Bounded(torch.zeros_like(high), high, dtype=torch.float32, device=device)
