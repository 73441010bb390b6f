"""Programs that play a task of accounts on a tape: what their names mean, how they act, and what authors are told."""

from __future__ import annotations

import keyword
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from vecenv.core.env import VecEnv
from vecenv.core.scenario import Scenario
from vecenv.market.bars import CLOSE
from vecenv.market.indicators import indicator_named
from vecenv.market.tape import MarketTape
from vecenv.market.validation import OHLCV
from vecenv.programs.evaluation import Evaluator
from vecenv.programs.expressions import Feature, Program, Vocabulary
from vecenv.programs.units import BARS, MONEY, NONE, PRICE, RETURN, SHARES, WEALTH

_RETURNS = ("daily_change", "momentum_10", "volatility_20", "gap")

BAR_FEATURES = dict.fromkeys(OHLCV[:-1], Feature(PRICE)) | {"volume": Feature(SHARES)}

ACCOUNT = {
    "cash": Feature(MONEY, account=True),
    "value": Feature(MONEY, account=True),  # cash and holdings at the close
    "holdings": Feature(SHARES, account=True),  # shares held of the symbol
    "held": Feature(WEALTH, account=True),  # worth of the position
    "cash_share": Feature(WEALTH, account=True),
    "gain": Feature(RETURN, account=True),  # return of the account since the start
    "bars_left": Feature(BARS, account=True),  # bars to the end of the episode
}
"""Features of every account, in the order of `account_features`."""


def shown_features(names: Iterable[str]) -> dict[str, Feature]:
    """Return what indicators, columns and series mean, as the market has them, in the units of prices or without.

    Those whose names are no names in Python are left out.
    """
    shown = {}
    for name in names:
        if name.isidentifier() and not keyword.iskeyword(name):
            known = indicator_named(name)
            shown[name] = Feature(
                PRICE if known is not None and known.price_unit else RETURN if name in _RETURNS else NONE
            )
    return shown


def market_features(tape: MarketTape, names: Sequence[str]) -> dict[str, Tensor]:
    """Return features that depend on no account by name. Shape of each: (P, T, K), or (P, T, 1) of a series."""
    found = {name: tape.ohlcv[..., column] for column, name in enumerate(OHLCV)}
    found |= {name: tape.context[..., place, None] for place, name in enumerate(tape.context_names)}
    found |= {name: tape.features[..., place] for place, name in enumerate(tape.feature_names) if name not in found}
    return {name: found[name] for name in names}


def account_features(state: Any, close: Tensor, tick_size: float) -> dict[str, Tensor]:  # noqa: ANN401
    """Return the features of accounts by name, float32. Shapes: (N,) states and (N, K) closes -> (N, K) or (N, 1)."""
    value = (state.portfolio_value.double() * tick_size).unsqueeze(-1)
    cash = (state.cash.double() * tick_size).unsqueeze(-1)
    found = {
        "cash": cash,
        "value": value,
        "holdings": state.holdings.double(),
        "held": state.holdings.double() * close.double() / value.clamp(min=1e-12),
        "cash_share": cash / value.clamp(min=1e-12),
        "gain": (state.portfolio_value.double() / state.start_value.double().clamp(min=1.0) - 1.0).unsqueeze(-1),
        "bars_left": (state.end_day - state.day).double().unsqueeze(-1),
    }
    return {name: values.float() for name, values in found.items()}


def refuse_other_rules(programs: Sequence[Program], vocabulary: Vocabulary) -> None:
    """Raise ValueError if a program was read with another vocabulary."""
    if any(program.vocabulary != vocabulary for program in programs):
        raise ValueError("the programs were read for other rules than the environment's")


class Strategies:
    """How programs play a task whose scenario is on a tape; a subclass says what one family's rules are.

    Scenarios are the family's, states those of N accounts, as `vecenv.finance.trading.Trading` reads them.

    Attributes:
        actions: settings of the task by what a program ends with; the first are those of programs that end otherwise.
    """

    actions: ClassVar[Mapping[str, Mapping[str, Any]]]

    def vocabulary(self, config: Any) -> Vocabulary:  # noqa: ANN401
        """Return what programs may read and must say under a config of the task."""
        raise NotImplementedError

    def market(self, scenario: Any, names: Sequence[str]) -> dict[str, Tensor]:  # noqa: ANN401
        """Return features that depend on no account by name. Shape of each: (P, T, K), or (P, T, 1) of a series."""
        return market_features(scenario.tape, names)

    def account(self, scenario: Any, state: Any) -> dict[str, Tensor]:  # noqa: ANN401
        """Return the features of accounts by name. Shape of each: (N, K) or (N, 1), float32."""
        close = scenario.tape.ohlcv[..., CLOSE][state.path, state.day]
        return account_features(state, close, scenario.tape.tick_size)

    def action(self, scenario: Any, output: Tensor) -> Tensor:  # noqa: ANN401
        """Return the actions of N rows that outputs name. Shape: (N, K) -> that of actions."""
        raise NotImplementedError

    def agent(self, programs: Sequence[Program]) -> ProgramAgent:
        """Return the agent of P programs: of N rows the first N / P play the first, and so on."""
        return ProgramAgent(self, programs)

    def full(self, config: Any) -> Any:  # noqa: ANN401
        """Return a config of the same rules whose episodes last all their days."""
        return config

    def days(self, config: Any) -> int:  # noqa: ANN401
        """Return the days of an episode."""
        raise NotImplementedError

    def first_day(self, scenario: Any) -> int:  # noqa: ANN401
        """Return the first day on which an episode may begin, on any path."""
        return scenario.tape.first_day

    def opened(self, scenario: Any, path: Tensor, day: Tensor, params: Any, shared: Any) -> Any:  # noqa: ANN401
        """Return the account at the start of an episode from a day of a path, for one row. Shape of each: ()."""
        raise NotImplementedError

    def refused(self, scenario: Any, before: Any, after: Any) -> Tensor:  # noqa: ANN401
        """Return the number of orders that were cut or refused in a step. Shape: (N,), int64."""
        raise NotImplementedError

    def told(self, scenario: Any, last: Any, reward: Tensor) -> dict[str, Tensor]:  # noqa: ANN401
        """Return what the rules say of ended accounts beside grade and return, by name, given their sums of rewards.

        Shape of each: (N,).
        """
        return {}

    def rules(self, config: Any) -> str:  # noqa: ANN401
        """Return what the grade means and what the rules cost and forbid, in sentences for authors."""
        raise NotImplementedError

    def share(self, config: Any, num_symbols: int) -> float:  # noqa: ANN401
        """Return the share of the account that buy and hold puts into each symbol."""
        return 1 / num_symbols


class ProgramAgent:
    """Plays P programs: of N rows the first N / P the first, and so on.

    Raises:
        ValueError: the rows of an environment cannot be shared equally, or its actions are not the programs'.
    """

    def __init__(self, strategies: Strategies, programs: Sequence[Program]) -> None:
        self.strategies, self.programs = strategies, programs
        self._evaluator: Evaluator | None = None
        self._scenario: Scenario | None = None
        self._ahead = torch.empty(0)

    def act(self, env: VecEnv) -> Tensor:
        evaluator, count, state = self._prepared(env), len(self.programs), env.state
        # Lanes are rows of one program and symbols: (N / P, K).
        paths, starts, days = (part.view(count, -1) for part in (state.path, state.start_day, state.day))
        if count > 1 and bool((paths != paths[:1]).any() | (starts != starts[:1]).any()):
            raise ValueError("programs that play together must play the same episodes: give rows equal env_ids")
        # Accounts that are worth nothing ended on an earlier day.
        rows = self._ahead[:, paths[0], days.amax(0)]
        account = self.strategies.account(env.scenario, state)
        own = {name: account[name].unflatten(0, (count, -1)) for name in evaluator.account_features}
        return self.strategies.action(env.scenario, evaluator.step(rows, own)[:, 0].flatten(0, 1))

    def _prepared(self, env: VecEnv) -> Evaluator:
        """Return the evaluator, with what can be known ahead of the environment's market."""
        scenario: Any = env.scenario
        if self._scenario is not scenario or self._evaluator is None:
            refuse_other_rules(self.programs, self.strategies.vocabulary(scenario.config))
            if env.num_envs % len(self.programs):
                raise ValueError(f"{env.num_envs} rows are not a multiple of {len(self.programs)} programs")
            self._evaluator = Evaluator(self.programs, own_accounts=True, device=env.device)
            # With the closes, which tell the shape where programs read nothing.
            features = self.strategies.market(scenario, [*self._evaluator.features, "close"])
            self._ahead, self._scenario = self._evaluator.ahead(features), scenario
        return self._evaluator
