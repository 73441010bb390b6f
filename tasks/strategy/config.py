"""Settings of the task of writing strategies, and the market that they name."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Literal

from vecenv.finance.trading import required_market
from vecenv.market.generators import GENERATORS, Kind, fitting_symbols, generator_of
from vecenv.market.options import MarketOptions
from vecenv.programs.limits import MOST_LINES
from vecenv.programs.units import SHARES
from vecenv.registry import task_named
from vecenv.system.settings import Count, CountFromZero, Fraction, NotNegative, Positive, Seed, Settings, When, Within
from vecenv.tasks.stock_trading.config import StockTradingConfig

if TYPE_CHECKING:
    from vecenv.finance.programs import Strategies
    from vecenv.market.tape import MarketTape

OWN_SYMBOLS = 5
"""Symbols of a generator that takes any, without names."""

Part = Literal["train", "validation", "test"]
PARTS: tuple[Part, ...] = ("train", "validation", "test")

STOCK_TRADING, DAYS = "stock_trading", 63

OF_STOCKS = When("account", STOCK_TRADING)

OUTPUTS = {"weights": "weight", "tilt": "tilt", "shares": "order", "orders": "order"}
"""What a program ends with by action."""


@dataclass(frozen=True)
class StrategyConfig(Settings):
    """Rules of the task; see ``tasks/strategy/rules.md`` for their exact meaning."""

    account: str = STOCK_TRADING
    """Task by whose law programs trade: stock_trading, or a tier with its own days, cash, costs and limits."""
    market: str = "planted"
    """File of bars or name of a generator."""
    planted_kind: Annotated[Kind, When("market", "planted")] = "momentum"
    """What the planted market hides: signal, momentum, reversal, cross_section or volatility."""
    symbols: tuple[str, ...] = ()
    """Symbols, by default all of data or of a generator that has its own, else five; a tier's are its own."""
    num_paths: Count = 1024
    """Histories of a generator; a quarter is shown, and one each is held out in training, validation and test."""
    num_days: Count | None = 504
    """Days of a generator; None takes its default."""
    market_seed: Seed = 0
    """Seed of a generator."""
    features: Annotated[tuple[str, ...], OF_STOCKS] = ("daily_change", "momentum_10", "volatility_20", "rsi_14")
    """Indicators or numeric columns of the data that programs may read, beside bars and account."""
    action: Literal["weights", "tilt", "shares", "orders"] = "weights"
    """What a program gives for each symbol: a weight, the tilt of an equal weight, or an order in shares; on a tier an
    order is a share of the cash to spend, or of the position to sell."""
    hmax: Annotated[Positive, When("action", "shares")] = 10_000.0
    """Largest order in shares per symbol and day."""
    language: Literal["programs", "python"] = "programs"
    """What rules are written in: the language of programs, or functions in Python, run by `vecenv.sandbox`."""
    seconds: Annotated[Positive, When("language", "python")] = 30.0
    """Seconds of the clock that a rule in Python may take to decide a day on all paths, a backstop."""
    days: Count | None = None
    """Days of an account, by default 63, on a tier its own."""
    paths: Annotated[int, Within(1, 2**16)] = 256
    """Common paths, M, on which all programs of an episode are graded; as many are held out."""
    tries: Annotated[int, Within(1, 100)] = 3
    """Programs of an episode, each of which is reported."""
    price_per_line: NotNegative = 0.0
    """Reward that each line of the last program costs."""
    most_lines: Annotated[int, Within(1, MOST_LINES)] = MOST_LINES
    """Lines of a program at most."""
    initial_cash: Annotated[Positive, OF_STOCKS] = 1_000_000.0
    """Cash at the start of each account, in the currency of the prices."""
    commission: Annotated[Fraction, OF_STOCKS] = 0.0
    """Share of the traded value."""
    slippage: Annotated[Fraction, OF_STOCKS] = 0.0
    """Share of the price lost to the market on each trade."""
    whole_shares: Annotated[bool, OF_STOCKS] = True
    """Trade whole shares, with exact integer accounts and, on a CPU, several times as fast; otherwise fractions."""
    embargo: CountFromZero = 20
    """Unused days between the shown and the held-out years."""
    part: Part = "train"
    """Whose held-out paths and years give the final grade."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rules, output = self.rules(), OUTPUTS[self.action]
        if getattr(rules, "random_symbol", False):
            raise ValueError("symbols must be named: a program's account does not draw one")
        # Programs of other accounts, which are imported with PyTorch, say themselves what they end with.
        known = self.action != "orders"
        if self.account != STOCK_TRADING:
            unit = self.strategies.vocabulary(rules).outputs.get(output)
            known = unit is not None and (output != "order" or (unit == SHARES) == (self.action == "shares"))
        if not known:
            raise ValueError(f"action {self.action!r} is not one of {self.account}'s")

    @property
    def strategies(self) -> Strategies:
        """How programs play the task of the accounts; ValueError if there is no such task or it takes no programs."""
        try:
            return task_named(self.account).check_programs()
        except ValueError as error:
            raise ValueError(f"account: {error}") from None

    def rules(self) -> Any:  # noqa: ANN401
        """Return the rules of the accounts, a config of their task."""
        if self.account == STOCK_TRADING:
            return StockTradingConfig(
                features=self.features,
                action="shares" if self.action == "orders" else self.action,
                whole_shares=self.whole_shares,
                initial_cash=self.initial_cash,
                hmax=self.hmax,
                commission=self.commission,
                slippage=self.slippage,
                random_start=False,
                episode_length=self.days or DAYS,
            )
        strategies, config = self.strategies, task_named(self.account).config()
        symbols = self.symbols or fitting_symbols(self.market, config.symbols)
        days = {} if self.days is None else {"days": self.days}
        return replace(config, symbols=symbols, **days, **strategies.actions[OUTPUTS[self.action]])

    def tape(self) -> MarketTape:
        """Return the market, with all paths and years.

        Raises:
            ValueError: the data are invalid, or a generator does not take a setting.
        """
        wanted = required_market(self.rules())
        options: dict[str, Any] = {
            "symbols": self.symbols or wanted.symbols,
            "features": wanted.features,
            "context": wanted.context,
        }
        if generator_of(self.market) is not None:
            options["symbols"] = options["symbols"] or (OWN_SYMBOLS if self.market in GENERATORS else None)
            options |= {"num_paths": self.num_paths, "num_days": self.num_days, "seed": self.market_seed}
        if self.market == "planted":
            options["generator"] = (("kind", self.planted_kind),)
        return _loaded(self.market, tuple(options.items()))


@lru_cache(maxsize=4)
def _loaded(market: str, options: tuple[tuple[str, Any], ...]) -> MarketTape:
    # Here, as the settings are told of without PyTorch.
    from vecenv.market.load import load_market

    given = dict(options)
    if "generator" in given:
        given["generator"] = dict(given["generator"])
    return load_market(market, MarketOptions(**given))
