"""The domain of tasks that trade on a tape: accounts while episodes are played, and what is told of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from vecenv.core.env import VecEnv
from vecenv.core.rows import Rows
from vecenv.finance.evaluation import AccountRecord, Traded, TradingEvaluation
from vecenv.finance.metrics import EpisodeCurves, episode_metrics, independent_groups
from vecenv.learn.domain import BEST_RULE, AgentRecord, Domain, Watch
from vecenv.learn.evaluation import Agent, Evaluation, play
from vecenv.market.bars import CLOSE
from vecenv.market.load import MarketOptions
from vecenv.market.tape import MarketTape


def tape_of(env: VecEnv) -> MarketTape:
    """Return the market tape of a trading environment."""
    return env.scenario.tape  # type: ignore[attr-defined]


def required_market(config: Any) -> MarketOptions:  # noqa: ANN401
    """Return what a config needs of its market: its features and series, and its symbols and scores if it has any."""
    symbols, scores = getattr(config, "market_symbols", ()) or None, getattr(config, "reads_scores", False)
    return MarketOptions(symbols=symbols, features=config.features, context=config.context, scores=scores)


class _Accounts(Watch):
    """Equity, traded value and cash of every row in currency, and the first row's positions, after each step."""

    def __init__(self, env: VecEnv) -> None:
        self.year = tape_of(env).periods_per_year
        self.columns: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
        self.step(env, ~env.rows.done)

    def step(self, env: VecEnv, running: Tensor) -> None:
        state: Any = env.state
        tape = tape_of(env)
        prices = tape.ohlcv[state.path[0], state.day[0], :, CLOSE]
        value, traded, cash = (getattr(state, name).double() for name in ("portfolio_value", "traded", "cash"))
        traded = torch.where(running, traded * tape.tick_size, 0.0)
        positions = state.holdings[0].double() * prices.double()
        self.columns.append((value * tape.tick_size, traded, cash * tape.tick_size, positions))

    def record(self, record: AgentRecord) -> AccountRecord:
        equity, traded, cash, positions = (torch.stack(column) for column in zip(*self.columns, strict=True))
        curves = EpisodeCurves(equity, traded[1:], cash, record.length, self.year)
        return AccountRecord(**vars(record), curves=curves, positions=positions)


def play_account(env: VecEnv, agent: Agent, seed: int) -> AccountRecord:
    """Play as `vecenv.learn.evaluation.play`; ValueError of a task that does not trade on a tape."""
    record = play(env, agent, seed)
    if not isinstance(record, AccountRecord):
        raise ValueError(f"{env.scenario.name} does not trade on a tape")
    return record


@dataclass(frozen=True, kw_only=True)
class Trading(Domain):
    """Reads the accounts of scenarios on a tape.

    Their state has ``cash``, ``portfolio_value``, ``traded`` in ticks, ``holdings`` in shares, and the position on the
    tape: ``path``, ``day`` and ``start_day``.

    Attributes:
        market: returns the `MarketOptions` of a config.
        generator: of the market that `vecenv.make` draws by default.
        bound: returns an upper bound of the cumulative return of the episodes at their start, shape (N,), or None.
        beside_account: outcomes that tables and results show beside the metrics of the account.
    """

    market: Callable[[Any], MarketOptions] = required_market
    generator: str = "synthetic"
    reference: str = "buy_and_hold"
    hindsight: str = "oracle"
    bound: Callable[[VecEnv], Tensor | None] = lambda env: None
    beside_account: Sequence[str] = ()

    validated: ClassVar[tuple[str, ...]] = (
        "validation_excess_percent",
        "validation_excess_low",
        "validation_excess_high",
        "validation_attainable_percent",
        "validation_sharpe",
    )
    """Log-return above the reference's in percent, with 95% interval; that of the best rule on the same episodes; mean
    Sharpe ratio of an episode. NaN where there is none."""

    def evaluation(
        self,
        env: VecEnv,
        **fields: Any,  # noqa: ANN401
    ) -> Callable[[Mapping[str, AccountRecord]], TradingEvaluation]:
        state: Any = env.state
        tape = tape_of(env)
        traded = Traded(tape.symbols, tape.dates, state.path.clone(), state.start_day.clone(), self.bound(env))
        return lambda records: TradingEvaluation(
            records=records, traded=traded, beside_account=self.beside_account, **fields
        )

    def watch(self, env: VecEnv) -> Watch:
        return _Accounts(env)

    def began(self, env: VecEnv, ended: Rows, ids: Tensor) -> tuple[Tensor, Tensor]:
        state: Any = ended.state
        return state.path, state.start_day

    def blocks_of(self, first: Tensor, second: Tensor) -> Tensor:
        return independent_groups(first, second, 1)[0]

    def seen_of_steps(self, state: Any) -> dict[str, Tensor]:  # noqa: ANN401
        """Return days of the market, of any path, for ``market_rows``."""
        # Days are far fewer than 2^32.
        return {"market_rows": (state.path << 32) + state.day}

    def of_validation(self, evaluation: Evaluation, agent: str) -> dict[str, float]:
        assert isinstance(evaluation, TradingEvaluation)
        above = evaluation.excess_log_returns
        excess = [100 * value for value in above[agent]] if agent in above else [math.nan] * 3
        best = 100 * above[BEST_RULE].mean if BEST_RULE in above else math.nan
        sharpe = float(episode_metrics(evaluation.records[agent].curves)["sharpe"].nanmean())
        return dict(zip(self.validated, (*excess, best, sharpe), strict=True))

    def trades(self, before: Any, after: Any) -> tuple[Tensor, Tensor]:  # noqa: ANN401
        exposure = 1.0 - before.cash.double() / before.portfolio_value.double().clamp(min=1e-12)
        flow = torch.where(after.traded > 0, (before.cash - after.cash).sign(), 0).to(torch.int8)
        return exposure, flow
