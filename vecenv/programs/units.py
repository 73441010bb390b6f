"""Units of the numbers of a program, and what operations make of them.

A unit is a product of powers of money, shares and bars, so that a price, money a share, times shares is money. What has
no dimension may still be of a kind of its own, a return or a share of wealth: kinds are not added to each other, but
plain numbers are to either. A number written in a program has no unit at all, `None`, and takes that of its neighbour.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Unit:
    """Powers of money, shares and bars; ``kind`` of numbers without dimension, empty for plain ones."""

    money: int = 0
    shares: int = 0
    bars: int = 0
    kind: str = ""

    @property
    def plain(self) -> bool:
        """Whether it is a number without dimension and kind."""
        return self == NONE

    @property
    def dimension(self) -> tuple[int, int, int]:
        return self.money, self.shares, self.bars

    def __str__(self) -> str:
        names = [name for name, unit in UNITS.items() if unit == self]
        if names:
            return names[0]
        powers = zip(("money", "shares", "bars"), self.dimension, strict=True)
        return " ".join(name if power == 1 else f"{name}^{power}" for name, power in powers if power)


NONE = Unit()
PRICE = Unit(money=1, shares=-1)
MONEY = Unit(money=1)
SHARES = Unit(shares=1)
BARS = Unit(bars=1)
RETURN = Unit(kind="return")
WEALTH = Unit(kind="share of wealth")

UNITS: dict[str, Unit] = {
    "none": NONE,
    "price": PRICE,
    "money": MONEY,
    "shares": SHARES,
    "bars": BARS,
    "return": RETURN,
    "share of wealth": WEALTH,
}
"""Units by the names that programs and messages give them."""


def common(left: Unit | None, right: Unit | None) -> Unit | None:
    """Return the unit of a sum, or of what is compared.

    Raises:
        ValueError: the units are different.
    """
    if left is None or left == right:
        return right
    if right is None:
        return left
    if left.dimension == right.dimension and "" in (left.kind, right.kind):
        return left if left.kind else right
    raise ValueError(f"{left} and {right} are different units")


def product(left: Unit | None, right: Unit | None) -> Unit | None:
    """Return the unit of a product: a multiple of a return is a return, and a return of a price is a price."""
    if left is None and right is None:
        return None
    left, right = left or NONE, right or NONE
    kind = left.kind if right.plain else right.kind if left.plain else ""
    money, shares, bars = (one + other for one, other in zip(left.dimension, right.dimension, strict=True))
    return Unit(money, shares, bars, "" if money or shares or bars else kind)


def quotient(left: Unit | None, right: Unit | None) -> Unit | None:
    """Return the unit of a quotient: that of two of one unit is plain."""
    if left is None and right is None:
        return None
    left, right = left or NONE, right or NONE
    money, shares, bars = (one - other for one, other in zip(left.dimension, right.dimension, strict=True))
    return Unit(money, shares, bars, left.kind if right.plain else "")
