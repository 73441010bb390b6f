"""Programs that play stock trading: what their names mean, in which units, and how they act."""

from __future__ import annotations

import keyword
from collections.abc import Sequence

import torch
from torch import Tensor

from vecenv.core.env import VecEnv
from vecenv.core.scenario import Scenario
from vecenv.finance.trading import tape_of
from vecenv.market.bars import CLOSE
from vecenv.market.indicators import INDICATORS
from vecenv.market.tape import MarketTape
from vecenv.market.validation import OHLCV
from vecenv.programs.evaluation import Evaluator
from vecenv.programs.expressions import Feature, Program, Strategies, Vocabulary
from vecenv.programs.units import BARS, MONEY, NONE, PRICE, RETURN, SHARES, WEALTH
from vecenv.tasks.stock_trading.agents import config_of_env
from vecenv.tasks.stock_trading.config import StockTradingConfig
from vecenv.tasks.stock_trading.law import StockState

OUTPUTS = {"weights": {"weight": WEALTH}, "tilt": {"tilt": NONE}, "shares": {"order": SHARES}}
"""What a program gives for each symbol by kind of action: a weight, the tilt of a weight, or an order."""

_RETURNS = ("daily_change", "momentum_10", "volatility_20", "gap")

_BARS = dict.fromkeys(OHLCV[:-1], Feature(PRICE)) | {"volume": Feature(SHARES)}

ACCOUNT = {
    "cash": Feature(MONEY, account=True),
    "value": Feature(MONEY, account=True),  # cash and holdings at the close
    "holdings": Feature(SHARES, account=True),  # shares held of the symbol
    "held": Feature(WEALTH, account=True),  # worth of the position
    "cash_share": Feature(WEALTH, account=True),
    "gain": Feature(RETURN, account=True),  # return of the account since the start
    "bars_left": Feature(BARS, account=True),  # bars to the end of the episode
}
"""Features of the account, in the order of `account_features`."""


def vocabulary_of(config: StockTradingConfig) -> Vocabulary:
    """Return the names of bars, of the indicators, columns and series that a config shows, and of the account.

    Indicators are as the market has them, in the units of prices or without, not as observations scale them. Columns
    whose names are no names in Python are left out.
    """
    shown = {}
    for name in (*config.features, *config.context):
        if name.isidentifier() and not keyword.iskeyword(name):
            price = name in INDICATORS and INDICATORS[name].price_unit
            shown[name] = Feature(PRICE if price else RETURN if name in _RETURNS else NONE)
    return Vocabulary(features=shown | _BARS | ACCOUNT, outputs=OUTPUTS[config.action])


def market_features(tape: MarketTape, names: Sequence[str]) -> dict[str, Tensor]:
    """Return features that depend on no account by name. Shape of each: (P, T, K), or (P, T, 1) of a series."""
    found = {name: tape.ohlcv[..., column] for column, name in enumerate(OHLCV)}
    found |= {name: tape.context[..., place, None] for place, name in enumerate(tape.context_names)}
    found |= {name: tape.features[..., place] for place, name in enumerate(tape.feature_names) if name not in found}
    return {name: found[name] for name in names}


def refuse_other_rules(programs: Sequence[Program], vocabulary: Vocabulary) -> None:
    """Raise ValueError if a program was read with another vocabulary."""
    if any(program.vocabulary != vocabulary for program in programs):
        raise ValueError("the programs were read for other rules than the environment's")


def account_features(state: StockState, close: Tensor, tick_size: float) -> dict[str, Tensor]:
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


def action_of(config: StockTradingConfig, output: Tensor, hmax: Tensor) -> Tensor:
    """Return the action that outputs name. Shapes: (N, K), and hmax () or (N, 1) -> (N, K), with tilts (N, K + 1)."""
    if config.action == "shares":
        return (output.double() / hmax).float().clamp(-1.0, 1.0)
    return torch.cat([output, torch.zeros_like(output[:, :1])], -1) if config.action == "tilt" else output


class ProgramAgent:
    """Plays P programs: of N rows the first N / P the first, and so on.

    Raises:
        ValueError: the rows of an environment cannot be shared equally, or its actions are not the programs'.
    """

    def __init__(self, programs: Sequence[Program]) -> None:
        self.programs = programs
        self._evaluator: Evaluator | None = None
        self._scenario: Scenario | None = None
        self._ahead = torch.empty(0)

    def act(self, env: VecEnv) -> Tensor:
        evaluator, count = self._prepared(env), len(self.programs)
        state, tape, config = env.state, tape_of(env), config_of_env(env)
        # Lanes are rows of one program and symbols: (N / P, K).
        paths, starts, days = (part.view(count, -1) for part in (state.path, state.start_day, state.day))
        if count > 1 and bool((paths != paths[:1]).any() | (starts != starts[:1]).any()):
            raise ValueError("programs that play together must play the same episodes: give rows equal env_ids")
        # Accounts that are worth nothing ended on an earlier day.
        rows = self._ahead[:, paths[0], days.amax(0)]
        account = account_features(state, tape.ohlcv[..., CLOSE][state.path, state.day], tape.tick_size)
        own = {name: account[name].unflatten(0, (count, -1)) for name in evaluator.account_features}
        output = evaluator.step(rows, own)[:, 0].flatten(0, 1)
        return action_of(config, output, env.scenario.params["hmax"].reshape(-1, 1))

    def _prepared(self, env: VecEnv) -> Evaluator:
        """Return the evaluator, with what can be known ahead of the environment's market."""
        if self._scenario is not env.scenario or self._evaluator is None:
            refuse_other_rules(self.programs, vocabulary_of(config_of_env(env)))
            if env.num_envs % len(self.programs):
                raise ValueError(f"{env.num_envs} rows are not a multiple of {len(self.programs)} programs")
            self._evaluator = Evaluator(self.programs, own_accounts=True, device=env.device)
            # With the closes, which tell the shape where programs read nothing.
            features = market_features(tape_of(env), [*self._evaluator.features, "close"])
            self._ahead, self._scenario = self._evaluator.ahead(features), env.scenario
        return self._evaluator


PROGRAMS = Strategies(
    actions={output: {"action": action} for action, outputs in OUTPUTS.items() for output in outputs},
    vocabulary=vocabulary_of,
    agent=ProgramAgent,
)
