"""Settings of trading on replayed order books, and their rates as whole numbers, so that all money is exact."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from vecenv.system.settings import (
    Count,
    CountFromZero,
    Fraction,
    Items,
    NotNegative,
    OpenShare,
    Positive,
    PositiveShare,
    Seed,
    Settings,
    When,
    Within,
)
from vecenv.tasks.crypto_lob.factors import DEFAULT_FACTORS, check_factors
from vecenv.tasks.crypto_lob.snapshots import FaultyRows

if TYPE_CHECKING:
    from torch import Tensor

Part = Literal["all", "train", "validation", "test"]

SYNTHETIC = "synthetic"
"""Name of the generator."""

BASIS_POINT = 1e-4

MOST_LEVELS = 1_000
"""Most levels of a side."""

MOST_HOURS = 24 * 366
"""Most hours that the generator makes."""

MOST_POINTS = 1_000
"""Largest fee, in basis points."""


OF_GENERATOR = When("book", SYNTHETIC, told="the book synthetic")


@dataclass(frozen=True, kw_only=True)
class BookSource(Settings):
    """What is read, and the clock that it is put on: two settings that agree in these share their books."""

    book: str = SYNTHETIC
    """File of order books, or synthetic for the generator."""
    symbol: Annotated[str, When("book", unlike=SYNTHETIC, told="a file of several coins")] = ""
    """Coin, in a file of several."""
    step_gap: Annotated[float, Within(0.001, 86_400)] = 1.0
    """Seconds from one row of the tape to the next, whole milliseconds."""
    max_age: NotNegative = 1.0
    """Seconds that a book may be old; a row without one is a hole."""
    levels: Annotated[int, Within(1, MOST_LEVELS)] = 10
    """Levels of a side that orders may walk, at most; a file may have fewer."""
    tick_size: Positive | None = None
    """Currency per tick, by default the largest power of ten of which all prices are multiples."""
    faulty_rows: Annotated[FaultyRows, When("book", unlike=SYNTHETIC, told="a file of books")] = "refuse"
    """Refuse a file with rows that are crossed, locked, one-sided, unsorted or not in the order of their times, or
    make holes of such books, put the times in order, and count both."""
    synthetic_hours: Annotated[float, Within(0, MOST_HOURS, above=True), OF_GENERATOR] = 24.0
    """Hours that the generator makes."""
    synthetic_strength: Annotated[float, Within(-100, 100), OF_GENERATOR] = 0.1
    """Basis points a second by which a standard deviation of its pressure moves the mid."""
    synthetic_seed: Annotated[Seed, OF_GENERATOR] = 0
    """Seed of the generator."""

    @property
    def source(self) -> BookSource:
        return BookSource(**{name: getattr(self, name) for name in BookSource.__dataclass_fields__})


@dataclass(frozen=True, kw_only=True)
class BookOptions(BookSource):
    """How a tape is made of books: two configs that agree in these share a tape."""

    unit: Positive | None = None
    """Coins of one unit; by default what ``initial_cash`` buys at the first mid, rounded down to two
    significant digits."""
    initial_cash: Positive = 1_000.0
    """Money at the start, in currency."""
    lot_size: Positive | None = None
    """Coins per lot, by default the largest power of ten of which a unit has at least 10,000."""
    factors: tuple[str, ...] = DEFAULT_FACTORS
    """Factors that are shown."""
    forecasts: str = ""
    """File of ``vecenv factors`` whose forecasts are shown too."""


@dataclass(frozen=True, kw_only=True)
class CryptoLobConfig(BookOptions):
    """Settings of trading on replayed order books; see ``tasks/crypto_lob/rules.md`` for the exact meaning."""

    part: Part = "all"
    """Part of the tape that episodes are of. Training, validation and test choose theirs."""
    test_fraction: Annotated[PositiveShare, When("test_hours", None, told="no test_hours")] = 0.25
    """Share of the tape, its end, that is the test; 1 for a tape that nothing is trained on."""
    train_hours: Positive | None = None
    """Hours from the beginning that are for training and validation, by default all before the test."""
    test_hours: Positive | None = None
    """Hours of the test, the last ones, instead of a share."""
    validation_share: OpenShare = 0.15
    """Share of the hours for training, their end, that is for validation."""
    embargo: NotNegative = 900.0
    """Seconds between the parts that belong to none; not less than factors look back."""
    episode_steps: Count = 600
    """Steps of an episode."""
    random_start: bool = True
    """Draw the starts; else the episodes are disjoint windows, one after the other."""
    max_gap: NotNegative = 60.0
    """Seconds of the longest run of holes within an episode."""
    action: Literal["step", "target", "continuous", "limit"] = "target"
    """Meaning of an action."""
    max_position: Count = 1
    """Units that may be held, long or short."""
    depth: CountFromZero = 0
    """Levels of the book that are shown, of each side: distances from the mid and sizes."""
    latency: CountFromZero = 1
    """Steps from a choice to its order in the market."""
    fill: Literal["book", "mid"] = "book"
    """Where market orders are filled: at the levels that they hit, or all at the mid."""
    taker_fee: Annotated[float, Within(0, MOST_POINTS)] = 2.0
    """Basis points of a market order's value."""
    maker_fee: Annotated[float, Within(-MOST_POINTS, MOST_POINTS), When("action", "limit")] = 0.0
    """Basis points of a resting order's value; negative for a rebate."""
    slippage: Annotated[float, Within(0, MOST_POINTS)] = 0.0
    """Basis points that market orders pay beside the fee."""
    limit_offsets: Annotated[tuple[Annotated[int, Within(-1)], ...], Items(1), When("action", "limit")] = (0, -1, 5)
    """Ticks behind the best price that resting orders can be placed at; -1 is before it."""
    cost_ramp: CountFromZero = 0
    """Episodes of each sub-environment of a training in which taker fee and slippage rise from nothing to their full;
    0 for full ones from the start. Nothing but trainings has it."""
    stop_loss: Fraction = 0.0
    """Share of the mid at the entry by which the best mid since may be left; 0 for none."""
    max_holding: CountFromZero = 0
    """Steps after which a position is closed; 0 for none."""
    maintenance_margin: Fraction = 0.05
    """Share of the position's value that equity must not fall below."""
    funding_rate: Annotated[float, Within(-1, 1, above=True, below=True)] = 0.0
    """Share of the position's value that a long one pays at each funding time; negative if it receives."""
    funding_hours: Annotated[float, Within(1e-6, 8_784), When("funding_rate", told="a funding_rate")] = 8.0
    """Hours from one funding time to the next, from midnight UTC on."""
    reward_scale: Positive = 1e4
    """Factor of the reward, a share of the initial cash: 10,000 for basis points."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.episode_steps <= self.latency:
            raise ValueError(f"episode_steps must be above the latency of {self.latency}, got {self.episode_steps}")
        check_factors(self.factors)

    @property
    def options(self) -> BookOptions:
        return BookOptions(**{name: getattr(self, name) for name in BookOptions.__dataclass_fields__})


RATE_UNITS = 10**9
"""A rate of one is so many units."""

MARGIN_UNITS = 10**4
"""A maintenance margin of one is so many units."""

LEAST_MONEY = 20
"""Least money of a fee on a unit that rounding up raises by less than 5%."""

_MOST = 2**62


def rate_tensors(config: CryptoLobConfig) -> dict[str, Tensor]:
    """Return the parameters of the rules. Shape of each: (), int64."""
    # Not above: the settings are told of without PyTorch.
    import torch

    rates = {
        "taker_fee": config.taker_fee * BASIS_POINT,
        "maker_fee": config.maker_fee * BASIS_POINT,
        "slippage": config.slippage * BASIS_POINT,
        "stop_loss": config.stop_loss,
        "funding_rate": config.funding_rate,
    }
    units = {name: round(rate * RATE_UNITS) for name, rate in rates.items()}
    units |= {"maintenance_margin": round(config.maintenance_margin * MARGIN_UNITS), "max_holding": config.max_holding}
    return {name: torch.tensor(value) for name, value in units.items()}


def part_up(money: Tensor, rate: Tensor) -> Tensor:
    """Return money times a rate, rounded up. Shape: that of both, int64."""
    return -((-money * rate) // RATE_UNITS)


def whole_money(cash: float, size: float, source: str) -> int:
    """Return an initial cash in money of a ``size``; raises ValueError if it is not whole money within 1%."""
    money = round(cash / size)
    if abs(money * size - cash) > 0.01 * cash:
        raise ValueError(
            f"{source}: initial_cash {cash:g} is no whole number of {size:g}, half a tick times a lot: use a smaller "
            f"unit, lot_size or tick_size, or more initial_cash"
        )
    return money


def warn_of_rounding(config: CryptoLobConfig, doubled_mid: int, unit: int, money_size: float, source: str) -> None:
    """Warn of rates whose amounts of a unit are rounded up by 5% or more; arguments as of `check_fits`."""
    for name in ("taker_fee", "maker_fee", "slippage"):
        points = getattr(config, name)
        exact = points * BASIS_POINT * doubled_mid * unit
        if 0 < abs(exact) < LEAST_MONEY:
            warnings.warn(
                f"{source}: a {name} of {points:g} points on a unit is {exact * money_size:.3g}, and rounded up to "
                f"whole money, {money_size:g} (half a tick times a lot): use a smaller lot_size or tick_size, or a "
                "larger unit",
                stacklevel=3,
            )


def check_fits(config: CryptoLobConfig, doubled_mid: int, unit: int, initial: int, source: str) -> None:
    """Raise a ValueError, naming the settings that make numbers smaller, if accounts can overflow 64 bits.

    ``doubled_mid`` is the highest of the tape, in ticks, ``unit`` in lots, ``initial`` the initial cash in money.
    """
    # Within an episode a price may be twice the mid at a deep level; an order may close one position and open another.
    value = 4 * doubled_mid * unit * config.max_position
    largest_rate = max(config.taker_fee, abs(config.maker_fee), config.slippage) * BASIS_POINT
    largest_rate = max(largest_rate, abs(config.funding_rate))
    products = (
        value * max(1, round(largest_rate * RATE_UNITS)),
        (value + initial) * MARGIN_UNITS * 4,
        value * unit * config.max_position * 2,
        doubled_mid * RATE_UNITS,
    )
    if max(products) >= _MOST:
        raise ValueError(
            f"{source}: {config.max_position} (max_position) units of {unit:,} lots at {doubled_mid:,} half ticks "
            f"do not fit into exact accounts: use a coarser lot_size or tick_size, or fewer units"
        )
