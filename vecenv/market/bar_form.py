"""What a file of bars does not tell: the market's zone, names of columns, and what is done with bad ranges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from vecenv.system.settings import Settings

if TYPE_CHECKING:
    from typing import Self


@dataclass(frozen=True, kw_only=True)
class BarForm(Settings):
    """How bars are to be read where the data does not tell.

    Attributes:
        timezone: zone of the market, such as ``Asia/Kolkata``: the date of a time with an offset is that of this zone.
        columns: column of the data by its meaning, such as ``{"close": "Adj Close"}``; another column that would have
            the same meaning is left out.
        clip: widen the range of bars whose open or close is outside it by at most 0.1%, and count them in a warning.
    """

    timezone: ZoneInfo | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    clip: bool = False

    @classmethod
    def of(cls, timezone: str | None, columns: Mapping[str, str] | Sequence[str], clip: bool) -> Self:
        """Return the form of settings; columns are a mapping, or texts such as ``close=Adj Close``.

        Raises:
            ValueError: there is no such zone, or a text has another form.
        """
        if not isinstance(columns, Mapping):
            pairs = [text.partition("=") for text in ([columns] if isinstance(columns, str) else columns)]
            if any(not (role.strip() and name.strip()) for role, _, name in pairs):
                raise ValueError(f"columns are given as close='Adj Close', got {' '.join(columns)!r}")
            columns = {role: name for role, _, name in pairs}
        roles = {role.strip().lower(): name.strip() for role, name in columns.items()}
        return cls(timezone=None if timezone is None else _zone(timezone), columns=roles, clip=clip)


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError) as error:
        raise ValueError(f"timezone must be a name such as Asia/Kolkata or America/New_York, got {name!r}") from error
