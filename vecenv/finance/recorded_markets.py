"""Markets of bars in the records of episodes: a recorder of them, and the market that a record names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from vecenv.market.load import MarketOptions, load_market
from vecenv.market.tape import MarketTape
from vecenv.system.settings import check_fields
from vecenv.text.recorder import Episode, Recorder, Step


class TapeRecorder(Recorder[Step, Episode]):
    """A recorder of episodes on a market of bars, which each record reproduces."""

    def market(self) -> dict[str, Any]:
        """Return the metadata of the market with what reproduces it."""
        scenario: Any = self.env.scenario
        tape = scenario.tape
        return {
            **scenario.metadata()["market"],
            "origin": self.origin or {"market": tape.source},
            # Reproducing a market needs all symbols and days of its source.
            "loaded_symbols": list(getattr(scenario, "drawn_symbols", tape.symbols)),
            "dates": [str(tape.dates[0]), str(tape.dates[-1])],
            "paths": None if tape.path_span is None else list(tape.path_span),
        }


def recorded_market(
    recorded: Mapping[str, Any], required: MarketOptions, market: str | None, device: torch.device | str
) -> MarketTape:
    """Recreate the market of a record, or another ``market`` with what the task requires.

    Raises:
        ValueError: the record does not name its market, or the market cannot be made.
    """
    given: dict[str, Any] = {item.name: recorded.get(item.name) for item in fields(_Named)}
    named = _Named(**given)
    market = named.origin.get("market") if market is None else market
    if not isinstance(market, str):
        raise ValueError(f"market: origin must name a market, got {market!r}")
    options = replace(
        MarketOptions().updated({name: value for name, value in named.origin.items() if name != "market"}),
        symbols=named.loaded_symbols,
        features=required.features,
        context=required.context,
        scores=required.scores,
        tick_size=named.tick_size,
    )
    tape = load_market(market, options, device).between(*named.dates)
    return tape.paths(*named.paths) if named.paths else tape


@dataclass(frozen=True)
class _Named:
    """What `TapeRecorder` adds, and what it is compared by."""

    origin: dict[str, Any]
    loaded_symbols: tuple[str, ...]
    dates: tuple[str, str]
    paths: tuple[int, int] | None
    tick_size: float
    fingerprint: str

    def __post_init__(self) -> None:
        try:
            check_fields(self)
        except ValueError as error:
            raise ValueError(f"market: {error}") from error


def check_same_market(tape: MarketTape, recorded: Mapping[str, Any], market: str | None) -> None:
    """Raise ValueError if a recreated market is not the recorded one."""
    name = recorded["origin"]["market"] if market is None else market
    if (fingerprint := tape.fingerprint()) != recorded["fingerprint"]:
        raise ValueError(
            f"{name} is another market: its fingerprint is {fingerprint}, the recorded one's is "
            f"{recorded['fingerprint']}, of {recorded.get('source')!r}; name the right one with --market"
        )
