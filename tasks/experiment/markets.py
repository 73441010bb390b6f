"""Markets of commands: a class of settings for each kind of market, which has the options with an effect there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import date
from inspect import signature
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar

from tyro import conf

from vecenv.finance.trading import Trading
from vecenv.market.bar_form import FormSettings
from vecenv.market.currency import checked_currency
from vecenv.market.generators import generator_of
from vecenv.market.market_close import MARKET_CLOSE, MarketClose
from vecenv.market.options import MarketOptions
from vecenv.registry import Task, with_fitting_symbols
from vecenv.system.settings import Count, CountFromZero, NotNegative, OpenShare, Positive, Seed, Settings, Share, When
from vecenv.tasks.experiment.options import Day

if TYPE_CHECKING:
    import torch

    from vecenv.market.tape import MarketTape

TaskConfig = TypeVar("TaskConfig", bound=Any)

OF_FORM = tuple(item.name for item in fields(FormSettings))


@dataclass(frozen=True, kw_only=True)
class Whole(Settings):
    """All days, of commands that do not part them."""

    owner: ClassVar[str] = "a command that parts the days"


@dataclass(frozen=True, kw_only=True)
class ByShare(Settings):
    """A share of the days of a history, or of a generator's paths, which are independent, is the test: the last."""

    owner: ClassVar[str] = "a command that splits a market of bars, without --train-end and --test-start"

    test_fraction: OpenShare = 0.2
    """Share of the days, or of several paths, for the test: the last."""
    embargo: CountFromZero = 20
    """Unused trading days between training and test, where days are split."""

    def training(self, tape: MarketTape) -> MarketTape:
        """Return the days or paths for training; ValueError if there is none after the warm-up."""
        return split_last(tape, self.test_fraction, self.embargo)[0]

    def test(self, tape: MarketTape) -> MarketTape:
        """Return the days or paths for the test; ValueError if there is none after the warm-up."""
        return split_last(tape, self.test_fraction, self.embargo)[1]

    def num_training(self, num_paths: int) -> int | None:
        """Return the number of paths for training, of several; None if it is days that are split."""
        from vecenv.market.tape import training_paths

        return training_paths(num_paths, self.test_fraction) if num_paths > 1 else None


@dataclass(frozen=True, kw_only=True)
class ByDates(Settings):
    """Dates part the days for training from those of the test."""

    owner: ClassVar[str] = "a command that splits a market of bars"

    train_end: Day | None = None
    """Last day of training; without it training ends the embargo before test-start."""
    test_start: Day | None = None
    """First day of the test; without it the test starts the embargo after train-end."""
    embargo: CountFromZero = 20
    """Unused trading days between training and test, unless dates set both."""

    def training(self, tape: MarketTape) -> MarketTape:
        """Return the days for training; ValueError if there is none after the warm-up."""
        if self.train_end is not None:
            return tape.between(None, self.train_end.isoformat())
        import numpy as np

        return tape.days(0, int(np.searchsorted(tape.dates, np.datetime64(self.test_start), "left")) - self.embargo)

    def test(self, tape: MarketTape) -> MarketTape:
        """Return the days for the test; ValueError if there is none after the warm-up."""
        if self.test_start is not None:
            return tape.between(self.test_start.isoformat(), None)
        import numpy as np

        after = int(np.searchsorted(tape.dates, np.datetime64(self.train_end), "right"))
        return tape.days(after + self.embargo, tape.num_days)

    def num_training(self, num_paths: int) -> int | None:
        return None


@dataclass(frozen=True, kw_only=True)
class BySpans(Settings):
    """Walk forward: spans of the test follow each other, each after a training on days before it alone."""

    owner: ClassVar[str] = "vecenv walk-forward"

    first_test: Day | None = None
    """First day that is traded. By default that in the middle of the tradable days, or train-years after their
    first."""
    test_months: Annotated[Count, When("test_days", None, told="spans without --test-days")] = 12
    """Months of a span, after which the next policy takes the account over."""
    test_days: Count | None = None
    """Trading days of a span, instead of months."""
    train_window: Literal["expanding", "rolling"] = "expanding"
    """Days of a training: expanding, all before its span, or rolling, the last train-years of them."""
    train_years: Annotated[
        Positive | None,
        When("train_window", "rolling", told="--train-window rolling"),
        When("first_test", None, told="a walk without --first-test"),
    ] = None
    """Years of a rolling window, by default as many as before the first span."""
    embargo: CountFromZero = 20
    """Unused trading days between training and span, and between training and validation."""


Split = Whole | ByShare | ByDates | BySpans


def split_last(tape: MarketTape, fraction: float, embargo: int) -> tuple[MarketTape, MarketTape]:
    """Split off the last fraction of several paths, which are independent, or of the days of one.

    Raises:
        ValueError: one of the parts would be empty.
    """
    return tape.split_paths(fraction) if tape.num_paths > 1 else tape.split(fraction, embargo)


@dataclass(frozen=True, kw_only=True)
class NoMarket(Settings):
    """Of tasks that simulate their own market, or read data of their own."""

    owner: ClassVar[str] = "a task of its own episodes"

    def fitted(self, record: Task, config: TaskConfig) -> TaskConfig:
        """Return a task's config with the symbols chosen here."""
        return config

    def origin(self) -> dict[str, Any] | None:
        """Return the market and the `MarketOptions` that reproduce it, for records; None without one."""
        return None


@dataclass(frozen=True, kw_only=True)
class BarMarket(Settings):
    """A market of bars, its span, and its split into training and test."""

    owner: ClassVar[str] = "a task on a market of bars"

    market: str = "neural"
    """File or folder of bars, or a generator such as neural or planted. CSV or Parquet file, folder of CSVs or of
    generated paths, npz; neural (judged, if agents are tested on real days afterwards), synthetic, planted,
    random_walk, or a file of vecenv worldmodel fit or train."""
    symbols: tuple[str, ...] = ()
    """Symbols to trade, by default all, or the tier's. Where a model lacks one of these, as many of its own; in a tier
    of one symbol also random."""
    start: Day | None = None
    """First day used."""
    end: Day | None = None
    """Last day used."""
    split: Annotated[Any, conf.arg(name="")] = field(default_factory=ByShare)
    """Which days or paths are for training, and which for the test."""
    currency: str | None = None
    """Currency code of the prices, such as USD, by default the data's."""
    periods_per_year: Positive | None = None
    """Bars of a year, by default by the market's own calendar. 252 exchange days, 365 days, 52 weeks, 12 months."""
    tick_size: Positive | None = None
    """Tick size in currency units, by default by the first prices. Those up to the first decision."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.currency is not None:
            checked_currency(self.currency)
        days = self._days()
        spans = (("start", "end"), ("start", "train_end"), ("train_end", "test_start"), ("test_start", "end"))
        for first, last in spans:
            if first in days and last in days and days[first] >= days[last]:
                raise ValueError(f"{first} {days[first]} must be before {last} {days[last]}")

    def _days(self) -> dict[str, date]:
        """Return the given dates by name."""
        given = {name: getattr(self, name) for name in ("start", "end")}
        given |= {name: getattr(self.split, name, None) for name in ("train_end", "test_start")}
        return {name: day for name, day in given.items() if day is not None}

    def fitted(self, record: Task, config: TaskConfig) -> TaskConfig:
        """Return a task's config with the symbols chosen here, if it has symbols.

        The task's default symbols give way to those of a model's file that lacks some.
        """
        if not any(item.name == "symbols" for item in fields(config)):
            return config
        if self.symbols:
            return replace(config, symbols=self.symbols)
        return with_fitting_symbols(config, self.market) if config.symbols == record.config().symbols else config

    def options(self) -> dict[str, Any]:
        """Return the fields of `MarketOptions` that this kind of market sets."""
        return {}

    def tape(self, config: Any, device: torch.device, headroom: float = 1.0) -> MarketTape:  # noqa: ANN401
        """Read or generate the market of all days used, with the context series and symbols that the config needs.

        ``headroom`` is the factor by which later prices may be higher, for the choice of a default tick. Invalid data
        and a missing symbol or series are a ValueError; so are, before anything is drawn, dates that a generated market
        does not have.
        """
        # Here, as settings are told of without PyTorch.
        from vecenv.market.load import load_market

        options = MarketOptions(
            # Symbols of a config may be placeholders, such as a random one.
            symbols=getattr(config, "market_symbols", self.symbols) or None,
            features=config.features,
            context=config.context,
            tick_size=self.tick_size,
            currency=self.currency,
            periods_per_year=self.periods_per_year,
            headroom=headroom,
            scores=bool(getattr(config, "reads_scores", False)),
            **self.options(),
        )
        tape = load_market(self.market, options, device)
        span = [None if day is None else day.isoformat() for day in (self.start, self.end)]
        return tape.between(*span) if any(span) else tape

    def origin(self) -> dict[str, Any]:
        """Return the market and the `MarketOptions` that reproduce it, for records."""
        plain, given = MarketOptions(), self.options() | {"periods_per_year": self.periods_per_year}
        kept = {name: value for name, value in given.items() if value != getattr(plain, name)}
        return {"market": self.market, "currency": self.currency, **kept}


@dataclass(frozen=True, kw_only=True)
class FileMarket(FormSettings, BarMarket):
    """A market of data."""

    owner: ClassVar[str] = "a market of data"

    context_market: str | None = None
    """File of one symbol whose closes become a context series, such as the VIX for a gate."""

    def options(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in (*OF_FORM, "context_market")}


@dataclass(frozen=True, kw_only=True)
class ScoredFileMarket(FileMarket):
    """A market of data for tasks that read scores of documents."""

    owner: ClassVar[str] = "a task that reads scores, such as signals, on a market of data"

    scores: tuple[str, ...] = ()
    """Files of scores of documents (symbol, date or published_at, sentiment, risk), beside the market's own columns."""
    news: str | None = None
    """File of the texts of documents (symbol, date or published_at, text), for agents that read."""
    score_delay: CountFromZero = 1
    """Trading days from the date of a score or text to the first decision that may use it, where there is no time of
    publication: a date alone may be that of the evening."""
    market_close: str = MARKET_CLOSE
    """Close of the market and its zone, which decide the day on which a document counts."""
    early_closes: str | None = None
    """File of the days on which the market closes at another time (date, time), such as early before holidays."""

    def __post_init__(self) -> None:
        super().__post_init__()
        MarketClose.parse(self.market_close)

    def options(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in ("score_delay", "market_close", "early_closes")}
        return super().options() | own | {"score_files": self.scores, "text_file": self.news}


@dataclass(frozen=True, kw_only=True)
class GeneratedMarket(BarMarket):
    """A generated market."""

    owner: ClassVar[str] = "a generated market"

    num_paths: Count = 32
    """Independent histories of a generator."""
    num_days: Count | None = None
    """Days of a generator, by default 504 or 1500. 504 of a neural market, the first 252 as warm-up history, and 1500
    of others."""
    market_seed: Seed = 0
    """Seed of a generator."""

    arguments: ClassVar[Mapping[str, str]] = {}
    """Settings by the argument of the generator that they are."""

    def generator(self) -> dict[str, Any]:
        """Return the further arguments of the generator that are given."""
        defaults = {item.name: item.default for item in fields(self)}
        given = {argument: getattr(self, name) for argument, name in self.arguments.items()}
        return {
            argument: value.isoformat() if isinstance(value, date) else value
            for argument, value in given.items()
            if value != defaults[self.arguments[argument]]
        }

    def options(self) -> dict[str, Any]:
        own = {"num_paths": self.num_paths, "num_days": self.num_days, "seed": self.market_seed}
        return own | {"generator": self.generator()}

    def origin(self) -> dict[str, Any]:
        return super().origin() | GeneratedMarket.options(self)

    def tape(self, config: Any, device: torch.device, headroom: float = 1.0) -> MarketTape:  # noqa: ANN401
        self._refuse_other_days()
        return super().tape(config, device, headroom)

    def _refuse_other_days(self) -> None:
        from vecenv.market.synthetic import business_days

        generate = generator_of(self.market)
        assert generate is not None
        days = self.num_days or signature(generate).parameters["num_days"].default
        if not isinstance(days, int):
            return
        first, last = business_days(days)[[0, -1]].tolist()
        for name, day in self._days().items():
            if not first <= day <= last:
                raise ValueError(
                    f"{name} {day} is outside the generated market {self.market}, whose days run from {first} to "
                    f"{last}: give the file that this date is of, --market FILE"
                )


@dataclass(frozen=True, kw_only=True)
class PlantedMarket(GeneratedMarket):
    """The planted market."""

    owner: ClassVar[str] = "the planted market"

    planted_kind: str | None = None
    """What the planted market hides: signal (a column shows it, the default), momentum, reversal, cross_section or
    volatility."""
    planted_strength: NotNegative | None = None
    """Mean return per day where it points up, by default 0.01 of signal and 0.0015 of the others; of volatility the
    relative distance of its two regimes from the average volatility, by default 0.7. At 0 there is nothing to find."""

    arguments: ClassVar[Mapping[str, str]] = {"kind": "planted_kind", "strength": "planted_strength"}


@dataclass(frozen=True, kw_only=True)
class NewsMarket(GeneratedMarket):
    """The market of synthetic news."""

    owner: ClassVar[str] = "the market of synthetic news"

    news_coverage: Share | None = None
    """Probability of a headline per symbol and day of the market of synthetic news, by default 0.6."""
    news_accuracy: Share | None = None
    """Probability that such a headline tells the truth, by default 0.6; at 0 the news tell nothing."""

    planted_strength: NotNegative | None = None
    """Mean return per day in the direction of what the news tell of, by default 0.0015."""

    arguments: ClassVar[Mapping[str, str]] = {
        "coverage": "news_coverage", "accuracy": "news_accuracy", "strength": "planted_strength",
    }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RegimeMarket(GeneratedMarket):
    """The synthetic market."""

    owner: ClassVar[str] = "the neural and the synthetic market"

    regime: str | None = None
    """Market regime of a generator: bull, bear, sideways or crisis."""

    arguments: ClassVar[Mapping[str, str]] = {"regime": "regime"}


@dataclass(frozen=True, kw_only=True)
class NeuralMarket(RegimeMarket):
    """The neural market."""

    owner: ClassVar[str] = "the neural market"

    history: str | None = None
    """File of real bars that the paths continue. Without it they start without history."""
    temperature: Positive = 1.0
    """Temperature: factor on the size of a neural market's moves."""

    arguments: ClassVar[Mapping[str, str]] = {
        "history": "history", "temperature": "temperature", "regime": "regime",
    }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ContinuedMarket(FormSettings, NeuralMarket):
    """The neural market after a history of real bars."""

    owner: ClassVar[str] = "--history"

    history_end: Day | None = None
    """Last day of that history. By default each path continues from a different day."""

    arguments: ClassVar[Mapping[str, str]] = {**NeuralMarket.arguments, "history_end": "history_end"}

    def options(self) -> dict[str, Any]:
        return super().options() | {name: getattr(self, name) for name in OF_FORM}


Market = NoMarket | BarMarket

MARKETS = (
    NoMarket, BarMarket, FileMarket, ScoredFileMarket, GeneratedMarket, PlantedMarket, NewsMarket, RegimeMarket,
    NeuralMarket, ContinuedMarket,
)  # fmt: skip
SPLITS = (ByShare, ByDates, BySpans)

SHIPPED: Mapping[str, type[GeneratedMarket]] = {
    "synthetic": RegimeMarket,
    "planted": PlantedMarket,
    "random_walk": GeneratedMarket,
    "neural": NeuralMarket,
    "judged": NeuralMarket,
    "news": NewsMarket,
}
"""Kinds of the generators that come with the package, which need not be imported to be known."""

OF_FILES = ("market", *OF_FORM, "context_market", "scores", "news", "early_closes")
"""Settings that say which files are read, and how: content is known by fingerprint, whatever its files are called."""


def market_for(
    record: Task,
    config: Any,  # noqa: ANN401
    chosen: Mapping[str, Any],
    split: Split | None = None,
) -> Market:
    """Return the default settings of the market of a task under a config.

    Args:
        record: the task.
        config: its config, which may read scores.
        chosen: values by name of what decides the kind: ``market``, by default the task's own, ``history``,
            ``train_end`` and ``test_start``.
        split: of a command that parts the days by itself, or not at all; by default ``chosen`` decides.
    """
    if not isinstance(record.domain, Trading):
        return NoMarket()
    own = record.domain.generator
    source = chosen.get("market") or (BarMarket.market if own == Trading.generator else own)
    dated = any(chosen.get(name) is not None for name in ("train_end", "test_start"))
    split = split or (ByDates() if dated else ByShare())
    kind = SHIPPED.get(source) or _by_signature(source)
    if kind is None:
        read = ScoredFileMarket if getattr(config, "reads_scores", False) else FileMarket
        return read(market=source, split=split)
    if kind is NeuralMarket and chosen.get("history") is not None:
        kind = ContinuedMarket
    return kind(market=source, split=split)


def _by_signature(source: str) -> type[GeneratedMarket] | None:
    """Return the kind of a generator by the arguments that it takes, None of data."""
    generate = generator_of(source)
    if generate is None:
        return None
    taken = set(signature(generate).parameters)
    kinds = (PlantedMarket, NewsMarket, NeuralMarket, RegimeMarket, GeneratedMarket)
    return next(kind for kind in kinds if set(kind.arguments) <= taken)
