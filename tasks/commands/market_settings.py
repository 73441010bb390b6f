"""Market settings of commands: source, span, and the split into training and test."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from datetime import date
from inspect import signature
from typing import Any, TypeVar

import numpy as np

from vecenv.core.checks import device_named
from vecenv.finance.trading import Trading
from vecenv.market.bar_form import FormSettings
from vecenv.market.decision_days import MARKET_CLOSE, MarketClose
from vecenv.market.load import MarketOptions, generator_of, load_market
from vecenv.market.path_folders import path_files
from vecenv.market.synthetic import business_days
from vecenv.market.tape import MarketTape, training_paths
from vecenv.market.validation import checked_currency
from vecenv.registry import task_named, with_fitting_symbols
from vecenv.system.settings import Count, CountFromZero, NotNegative, OpenShare, Positive, Seed, Share
from vecenv.tasks.commands.options import Day

TaskConfig = TypeVar("TaskConfig", bound=Any)

_OF_SOME_GENERATORS = {
    "history": "history",
    "history_end": "history_end",
    "temperature": "temperature",
    "regime": "regime",
    "planted_kind": "kind",
    "planted_strength": "strength",
    "news_coverage": "coverage",
    "news_accuracy": "accuracy",
}
"""Settings that only some generators accept, with the name of the generator's argument."""

_OF_FORM = tuple(item.name for item in fields(FormSettings))

OF_FILES = ("market", *_OF_FORM, "context_market", "scores", "news", "early_closes")
"""Settings that say which files are read, and how: content is known by fingerprint, whatever its files are called."""

_OF_DOCUMENTS = ("scores", "news", "score_delay", "market_close", "early_closes")
"""Settings of scores and texts from files."""


@dataclass(frozen=True)
class MarketSettings(FormSettings):
    """Market, span and split.

    A history is split by days, with an embargo between training and test; a generated market, and a folder of paths,
    by paths.
    """

    market: str = "neural"
    """CSV or Parquet file, folder of CSVs or of generated paths, npz, or a generator: neural (judged, if agents are
    tested on real days afterwards), synthetic, planted, random_walk, or a file of vecenv worldmodel fit or train."""
    symbols: tuple[str, ...] = ()
    """Symbols to trade, by default all, or the tier's, or as many of the model's own where it lacks one of these; in a
    tier of one symbol also random."""
    start: Day | None = None
    """First day used."""
    end: Day | None = None
    """Last day used."""
    train_end: Day | None = None
    """Last day of training; by default the split follows test-start or test-fraction."""
    test_start: Day | None = None
    """First day of the test; by default the split follows train-end or test-fraction."""
    test_fraction: OpenShare = 0.2
    """Share of the days, or of a generator's paths, for the test, the last ones."""
    embargo: CountFromZero = 20
    """Unused trading days between training and test, unless dates set both."""
    context_market: str | None = None
    """File of one symbol whose closes become a context series, such as the VIX for a gate."""
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
    currency: str | None = None
    """Currency code of the prices, such as USD, by default that of the data or the generator."""
    periods_per_year: Positive | None = None
    """Bars of a year, by default by the market's own calendar: 252 exchange days, 365 days, 52 weeks, 12 months."""
    tick_size: Positive | None = None
    """Tick size in currency units; by default chosen from the prices up to the first decision."""
    num_paths: Count = 32
    """Independent histories of a generator."""
    num_days: Count | None = None
    """Days of a generator: by default 504 of a neural market, the first 252 as warm-up history, and 1500 of others."""
    market_seed: Seed = 0
    """Seed of a generator."""
    history: str | None = None
    """File of real bars that a neural market's paths continue; without it they start without history."""
    history_end: Day | None = None
    """Last day of that history; by default each path continues from a different day."""
    temperature: Positive = 1.0
    """Temperature: factor on the size of a neural market's moves."""
    regime: str | None = None
    """Market regime of a generator: bull, bear, sideways or crisis."""
    planted_kind: str | None = None
    """What the planted market hides: signal (a column shows it, the default), momentum, reversal, cross_section or
    volatility."""
    planted_strength: NotNegative | None = None
    """Mean return per day where it points up, by default 0.01 of signal and 0.0015 of the others; of volatility the
    relative distance of its two regimes from the average volatility, by default 0.7. At 0 there is nothing to find."""
    news_coverage: Share | None = None
    """Probability of a headline per symbol and day of the market of synthetic news, by default 0.6."""
    news_accuracy: Share | None = None
    """Probability that such a headline tells the truth, by default 0.6; at 0 the news tell nothing."""
    device: str = "auto"
    """Device: cpu, cuda, or auto for cuda if available."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.currency is not None:
            checked_currency(self.currency)
        MarketClose.parse(self.market_close)
        spans = [("start", "end"), ("start", "train_end"), ("train_end", "test_start"), ("test_start", "end")]
        for first, last in spans:
            low, high = getattr(self, first), getattr(self, last)
            if low is not None and high is not None and low >= high:
                raise ValueError(f"{first} {low} must be before {last} {high}")

    def inapplicable(self) -> dict[str, str]:
        generate = generator_of(self.market)
        names: dict[str, str] = {}
        if generate is None:
            own = ("num_paths", "num_days", "market_seed", *_OF_SOME_GENERATORS)
            names |= dict.fromkeys(own, "a generated market")
            if len(path_files(self.market)) > 1 and self.train_end is None and self.test_start is None:
                names["embargo"] = "a split by days"
        else:
            taken = signature(generate).parameters
            names |= dict.fromkeys(("context_market", *_OF_DOCUMENTS), "a market of data")
            if self.history is None or "history" not in taken:
                names |= dict.fromkeys(_OF_FORM, "a market of data")
            owners = {"regime": "the neural and the synthetic market"}
            owners |= dict.fromkeys(("planted_kind", "planted_strength"), "the planted market")
            owners |= dict.fromkeys(("news_coverage", "news_accuracy"), "the market of synthetic news")
            foreign = [name for name, argument in _OF_SOME_GENERATORS.items() if argument not in taken]
            names |= {name: owners.get(name, "the neural market") for name in foreign}
        if not _reads_scores(getattr(self, "env", None)):
            names |= dict.fromkeys(_OF_DOCUMENTS, "a task that reads scores, such as signals")
        if "history_end" not in names and self.history is None:
            names["history_end"] = "--history"
        dated = self.train_end is not None, self.test_start is not None
        if any(dated):
            names["test_fraction"] = "a split without --train-end and --test-start"
        if all(dated):
            names["embargo"] = "a split without --train-end or --test-start"
        elif generate is not None and self.num_paths > 1 and not any(dated):
            names["embargo"] = "a split by days"
        return names

    def with_symbols(self, config: TaskConfig) -> TaskConfig:
        """Return a task's config with the symbols chosen here, if it has symbols.

        The task's default symbols give way to those of a model's file that lacks some.
        """
        if not any(item.name == "symbols" for item in fields(config)):
            return config
        if self.symbols:
            return replace(config, symbols=self.symbols)
        task = getattr(self, "task", None)
        usual = task is not None and config.symbols == task_named(task).config().symbols
        return with_fitting_symbols(config, self.market) if usual else config

    def tape(self, config: Any, headroom: float = 1.0) -> MarketTape:  # noqa: ANN401
        """Read or generate the market of all days, with the context series and symbols that the config needs.

        ``headroom`` is the factor by which later prices may be higher, for the choice of a default tick. Invalid data
        and a missing symbol or series are a ValueError; so are, before anything is drawn, dates that a generated market
        does not have.
        """
        self._refuse_other_days()
        # Symbols of a config may be placeholders, such as a random one.
        options = MarketOptions(
            symbols=getattr(config, "market_symbols", self.symbols) or None,
            features=config.features,
            context=config.context,
            **{name: getattr(self, name) for name in _OF_FORM},
            context_market=self.context_market,
            num_paths=self.num_paths,
            num_days=self.num_days,
            seed=self.market_seed,
            generator=self.generator(),
            tick_size=self.tick_size,
            currency=self.currency,
            periods_per_year=self.periods_per_year,
            headroom=headroom,
            scores=_reads_scores(config),
            score_files=self.scores,
            text_file=self.news,
            score_delay=self.score_delay,
            market_close=self.market_close,
            early_closes=self.early_closes,
        )
        tape = load_market(self.market, options, device_named(self.device))
        if self.start is None and self.end is None:
            return tape
        return tape.between(_text(self.start), _text(self.end))

    def _refuse_other_days(self) -> None:
        generate = generator_of(self.market)
        days = None if generate is None else self.num_days or signature(generate).parameters["num_days"].default
        if not isinstance(days, int):
            return
        first, last = business_days(days)[[0, -1]].tolist()
        for name in ("start", "end", "train_end", "test_start"):
            day = getattr(self, name)
            if day is not None and not first <= day <= last:
                raise ValueError(
                    f"{name} {day} is outside the generated market {self.market}, whose days run from {first} to "
                    f"{last}: give the file that this date is of, --market FILE"
                )

    def generator(self) -> dict[str, Any]:
        defaults = {item.name: item.default for item in fields(MarketSettings)}
        given = {name: getattr(self, name) for name in _OF_SOME_GENERATORS}
        return {
            _OF_SOME_GENERATORS[name]: _text(value) if isinstance(value, date) else value
            for name, value in given.items()
            if value != defaults[name]
        }

    def training(self, tape: MarketTape) -> MarketTape:
        """Return the days or paths for training, a ValueError if there is none after the warm-up."""
        if self.train_end is not None:
            return tape.between(None, _text(self.train_end))
        if self.test_start is not None:
            return tape.days(0, _first_day(tape, self.test_start) - self.embargo)
        return self.split(tape, self.test_fraction)[0]

    def training_alone(self, config: Any) -> MarketTape:  # noqa: ANN401
        """Generate the training paths only, equal to `training` of `tape`."""
        if self.num_paths == 1 or self.train_end is not None or self.test_start is not None:
            return self.training(self.tape(config))
        return replace(self, num_paths=self.num_training_paths()).tape(config)

    def num_training_paths(self) -> int:
        """Return the number of a generator's paths that are for training, if the split is by paths."""
        return training_paths(self.num_paths, self.test_fraction)

    def test(self, tape: MarketTape) -> MarketTape:
        """Return the days or paths for the test, a ValueError if there is none after the warm-up."""
        if self.test_start is not None:
            return tape.between(_text(self.test_start), None)
        if self.train_end is not None:
            after = int(np.searchsorted(tape.dates, np.datetime64(self.train_end), "right"))
            return tape.days(after + self.embargo, tape.num_days)
        return self.split(tape, self.test_fraction)[1]

    def split(self, tape: MarketTape, fraction: float) -> tuple[MarketTape, MarketTape]:
        """Split off the last fraction of a generated market's paths, which are independent, or of a history's days.

        Raises:
            ValueError: one of the parts would be empty.
        """
        if tape.num_paths > 1:
            return tape.split_paths(fraction)
        return tape.split(fraction, self.embargo)


def market_origin(settings: MarketSettings) -> dict[str, Any]:
    """Return the market and the `MarketOptions` that reproduce a command's market, for records."""
    return {
        "market": settings.market,
        "context_market": settings.context_market,
        "num_paths": settings.num_paths,
        "num_days": settings.num_days,
        "seed": settings.market_seed,
        "generator": settings.generator(),
        "currency": settings.currency,
    } | _unusual(settings)


def _unusual(settings: MarketSettings) -> dict[str, Any]:
    """Return the `MarketOptions` of a year and of bars, scores and texts from files that are not their defaults."""
    given = {name: getattr(settings, name) for name in _OF_FORM} | {
        "periods_per_year": settings.periods_per_year,
        "score_files": settings.scores,
        "text_file": settings.news,
        "score_delay": settings.score_delay,
        "market_close": settings.market_close,
        "early_closes": settings.early_closes,
    }
    plain = MarketOptions()
    return {name: value for name, value in given.items() if value != getattr(plain, name)}


def default_market(task: str) -> str:
    """Return the market of a command by default: that of a task which needs its own, else of `MarketSettings`."""
    domain = task_named(task).domain
    own = domain.generator if isinstance(domain, Trading) else Trading.generator
    return MarketSettings.market if own == Trading.generator else own


def _reads_scores(config: Any) -> bool:  # noqa: ANN401
    return bool(getattr(config, "reads_scores", False))


def _first_day(tape: MarketTape, day: date) -> int:
    return int(np.searchsorted(tape.dates, np.datetime64(day), "left"))


def _text(day: date | None) -> str | None:
    return None if day is None else day.isoformat()
