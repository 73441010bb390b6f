"""What a file of bars does not tell: its zone, names of columns, form of dates, and what is done with bad ranges."""

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
        date_format: form of dates, such as ``%m/%d/%Y``; a column of which none has it is read without.
    """

    timezone: ZoneInfo | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    clip: bool = False
    date_format: str | None = None

    @classmethod
    def of(
        cls,
        timezone: str | None,
        columns: Mapping[str, str] | Sequence[str],
        clip: bool,
        date_format: str | None = None,
    ) -> Self:
        """Return the form of settings; columns are a mapping, or texts such as ``close=Adj Close``.

        Raises:
            ValueError: there is no such zone, a text has another form, or the format does not tell a date.
        """
        if not isinstance(columns, Mapping):
            pairs = [text.partition("=") for text in ([columns] if isinstance(columns, str) else columns)]
            if any(not (role.strip() and name.strip()) for role, _, name in pairs):
                raise ValueError(f"columns are given as close='Adj Close', got {' '.join(columns)!r}")
            columns = {role: name for role, _, name in pairs}
        roles = {role.strip().lower(): name.strip() for role, name in columns.items()}
        zone = None if timezone is None else _zone(timezone)
        told = None if date_format is None else _checked_format(date_format)
        return cls(timezone=zone, columns=roles, clip=clip, date_format=told)


@dataclass(frozen=True, kw_only=True)
class FormSettings(Settings):
    """How bars of a file are read where it does not tell: settings of commands."""

    timezone: str | None = None
    """Zone of the market of a file, such as Asia/Kolkata, in which times with an offset have their dates."""
    columns: tuple[str, ...] = ()
    """Columns of a file by meaning, where their names do not tell, such as close="Adj Close"."""
    clip: bool = False
    """Widen the range of bars whose open or close is outside it by at most 0.1%, and tell their number."""
    date_format: str | None = None
    """Form of the dates of files, where it is not certain, such as %m/%d/%Y."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.form()

    def form(self) -> BarForm:
        return BarForm.of(self.timezone, self.columns, self.clip, self.date_format)


def _checked_format(text: str) -> str:
    # Readers of dates import NumPy, which settings without a format do not need.
    from vecenv.market.dates import checked_format

    return checked_format(text)


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError) as error:
        raise ValueError(f"timezone must be a name such as Asia/Kolkata or America/New_York, got {name!r}") from error
