"""The domain of tasks that trade on a tape: accounts while episodes are played, and what is told of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from vecenv.learn.domain import BEST_RULE, Domain, Watch
from vecenv.market.options import MarketOptions

if TYPE_CHECKING:
    from torch import Tensor

    from vecenv.core.env import VecEnv
    from vecenv.core.rows import Rows
    from vecenv.finance.evaluation import AccountRecord, TradingEvaluation
    from vecenv.learn.evaluation import Evaluation


def required_market(config: Any) -> MarketOptions:  # noqa: ANN401
    """Return what a config needs of its market: its features and series, and its symbols and scores if it has any."""
    symbols, scores = getattr(config, "market_symbols", ()) or None, getattr(config, "reads_scores", False)
    return MarketOptions(symbols=symbols, features=config.features, context=config.context, scores=scores)


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
        # Here and below, as the settings of a task are told of without evaluations.
        from vecenv.finance.accounts import tape_of
        from vecenv.finance.evaluation import Traded, TradingEvaluation

        state: Any = env.state
        tape = tape_of(env)
        where = state.path.clone(), state.start_day.clone()
        traded = Traded(tape.symbols, tape.dates, *where, self.bound(env), tape.generated)
        return lambda records: TradingEvaluation(
            records=records, traded=traded, beside_account=self.beside_account, **fields
        )

    def watch(self, env: VecEnv) -> Watch:
        from vecenv.finance.accounts import Accounts

        return Accounts(env)

    def began(self, env: VecEnv, ended: Rows, ids: Tensor) -> tuple[Tensor, Tensor]:
        state: Any = ended.state
        return state.path, state.start_day

    def blocks_of(self, first: Tensor, second: Tensor) -> Tensor:
        from vecenv.finance.metrics import independent_groups

        return independent_groups(first, second, 1)[0]

    def seen_of_steps(self, state: Any) -> dict[str, Tensor]:  # noqa: ANN401
        """Return days of the market, of any path, for ``market_rows``."""
        # Days are far fewer than 2^32.
        return {"market_rows": (state.path << 32) + state.day}

    def of_validation(self, evaluation: Evaluation, agent: str) -> dict[str, float]:
        from vecenv.finance.evaluation import TradingEvaluation
        from vecenv.finance.metrics import episode_metrics

        assert isinstance(evaluation, TradingEvaluation)
        above = evaluation.excess_log_returns
        excess = [100 * value for value in above[agent]] if agent in above else [math.nan] * 3
        best = 100 * above[BEST_RULE].mean if BEST_RULE in above else math.nan
        sharpe = float(episode_metrics(evaluation.records[agent].curves)["sharpe"].nanmean())
        return dict(zip(self.validated, (*excess, best, sharpe), strict=True))

    def trades(self, before: Any, after: Any) -> tuple[Tensor, Tensor]:  # noqa: ANN401
        exposure = 1.0 - before.cash.double() / before.portfolio_value.double().clamp(min=1e-12)
        flow = (before.cash - after.cash).sign().where(after.traded > 0, 0).char()
        return exposure, flow
