"""Episode records: observations, texts, orders, fills and rewards, as JSONL and as a Parquet table.

A line of JSONL is one `RecordedEpisode`. It identifies its episode (seed, row and number) and its market, so that
``vecenv replay`` can reproduce it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vecenv.text.money import sign_of


@dataclass(frozen=True)
class RecordedDay:
    """One day of an episode. Money is in the currency of the prices.

    Attributes:
        date: day at whose close the orders were filled.
        messages: the observation as a chat message of role ``user``, the action as one of role ``assistant``.
        valid: whether the action obeyed the format.
        orders: ``side``, ``symbol`` and ``fraction`` of each order, and ``shares``: bought, negative where sold.
        holdings: shares by symbol after the orders.
        cash: after the orders.
        portfolio_value: at the next close.
        traded: value bought and sold.
        costs: commissions and slippage.
        reward: of the day.
        components: unweighted reward components, by name.
        weighted: weighted reward components, by name.
        mistakes: counts by name.
    """

    date: str
    messages: list[dict[str, str]]
    valid: bool
    orders: list[dict[str, Any]]
    holdings: dict[str, int]
    cash: float
    portfolio_value: float
    traded: float
    costs: float
    reward: float
    components: dict[str, float]
    weighted: dict[str, float]
    mistakes: dict[str, int]

    @property
    def action(self) -> str:
        """The agent's text."""
        return self.messages[-1]["content"]


@dataclass(frozen=True)
class RecordedEpisode:
    """One episode of a trading tier.

    Attributes:
        versions: of the package, the task and each grader.
        task: name of the task.
        config: rules of the task, with their action space.
        curriculum: settings of the episode's curriculum, else empty.
        params: per-row parameters, by name.
        market: metadata of the market, and under ``origin`` the market and the `MarketOptions` by name that reproduce
            it.
        seed: identifies the episode together with the next two.
        env_id: identity of the row in the draw of path and start.
        episode: number of the episode of that row.
        path: path of the market.
        symbols: symbols of the observation.
        dates: first day of the episode, and the day of its last portfolio value.
        start_value: portfolio value at the start, in currency.
        days: records by day.
        finished: whether the episode has ended.
        total_return: portfolio value at the end over the one at the start, less 1.
        mistakes: counts by name.
        grades: by grader.
    """

    versions: dict[str, Any]
    task: str
    config: dict[str, Any]
    curriculum: dict[str, Any]
    params: dict[str, Any]
    market: dict[str, Any]
    seed: int
    env_id: int
    episode: int
    path: int
    symbols: list[str]
    dates: list[str]
    start_value: float
    days: list[RecordedDay]
    finished: bool
    total_return: float
    mistakes: dict[str, int]
    grades: dict[str, float]

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON values."""
        return json.loads(json.dumps(asdict(self), allow_nan=False))

    @property
    def money_sign(self) -> str:
        """Prefix of amounts of money."""
        chosen = self.config.get("currency")
        return sign_of(self.market.get("currency")) if chosen is None else chosen

    @classmethod
    def from_json(cls, values: Any) -> RecordedEpisode:  # noqa: ANN401
        """Return a record from JSON values.

        Raises:
            ValueError: they are not a record.
        """
        try:
            record = cls(**{**values, "days": [RecordedDay(**day) for day in values["days"]]})
            for day in record.days:
                _ = day.action
            return record
        except (TypeError, LookupError) as error:
            raise ValueError(f"not the record of an episode: {error}") from error


def write_jsonl(path: Path | str, records: Sequence[RecordedEpisode]) -> None:
    """Write one line per episode."""
    lines = [json.dumps(asdict(record), allow_nan=False) + "\n" for record in records]
    Path(path).write_text("".join(lines))


def read_jsonl(path: Path | str) -> list[RecordedEpisode]:
    """Read what `write_jsonl` wrote.

    Raises:
        ValueError: naming the first line that is not a record, or saying that there is none.
    """
    try:
        lines = Path(path).read_text().splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not a text file") from error
    records = []
    for number, line in enumerate(lines, 1):
        try:
            records.append(RecordedEpisode.from_json(json.loads(line)))
        except ValueError as error:
            raise ValueError(f"{path}: line {number}: {error}") from error
    if not records:
        raise ValueError(f"{path}: there is no episode in it")
    return records


def write_parquet(path: Path | str, records: Sequence[RecordedEpisode]) -> None:
    """Write a table of one row per episode and day, one column per number.

    Components of the reward are ``component/NAME`` and ``weighted/NAME``, mistakes ``mistake/NAME``, positions
    ``shares/SYMBOL``; ``grade/NAME``, ``total_return`` and ``finished`` are those of the whole episode.

    Raises:
        ValueError: there is no episode.
    """
    if not records:
        raise ValueError("there is no episode to write")
    # pandas is slow to import, and only this function needs it.
    import pandas as pd

    rows = []
    for line, record in enumerate(records, 1):
        whole = {"line": line, "task": record.task, "seed": record.seed, "env_id": record.env_id}
        whole |= {"episode": record.episode, "path": record.path, "market": record.market["fingerprint"]}
        outcome = {"total_return": record.total_return, "finished": record.finished}
        outcome |= {f"grade/{name}": grade for name, grade in record.grades.items()}
        for number, day in enumerate(record.days, 1):
            amounts = ("cash", "portfolio_value", "traded", "costs", "reward")
            rows.append(
                whole
                | {"day": number, "date": pd.Timestamp(day.date), "valid": day.valid, "num_orders": len(day.orders)}
                | {name: getattr(day, name) for name in amounts}
                | {f"component/{name}": value for name, value in day.components.items()}
                | {f"weighted/{name}": value for name, value in day.weighted.items()}
                | {f"mistake/{name}": count for name, count in day.mistakes.items()}
                | {f"shares/{symbol}": day.holdings.get(symbol, 0) for symbol in record.symbols}
                | outcome
            )
    pd.DataFrame(rows).to_parquet(path, index=False)
