"""``vecenv data``: inspects, converts and fetches bars."""

from __future__ import annotations

import json

import pandas as pd

from tests.tasks.commands.small_runs import DAYS, bars
from vecenv.market import fetch
from vecenv.tasks.commands import cli
from vecenv.tasks.commands.data import FetchSettings


def test_a_large_move_is_told_in_one_line(tmp_path, capsys):
    table = bars(1, 30)
    table.loc[table.index >= 20, ["open", "high", "low", "close"]] /= 2
    table.to_csv(tmp_path / "split.csv", index=False)
    assert cli.main(["data", "inspect", str(tmp_path / "split.csv")]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("warning: ") and "symbol S0, date 2020-01-29" in line


def test_data_inspect_and_convert(market_place):
    target, summary = market_place / "finrl.csv", market_place / "summary.json"
    assert cli.main(["data", "convert", str(market_place / "market.parquet"), str(target)]) == 0
    assert cli.main(["data", "inspect", str(target), "--json", str(summary)]) == 0
    result = json.loads(summary.read_text())
    assert (result["days"], result["symbols"], result["rows"]) == (DAYS, 3, 3 * DAYS)


def test_data_fetch(tmp_path, monkeypatch, capsys):
    asked = []

    def fetched(symbols, start, end, suffix):
        asked.append((tuple(symbols), start, end, suffix))
        return bars(2, 5)

    monkeypatch.setattr(fetch, "fetch_bars", fetched)
    span = ["--start", "2020-01-01", "--end", "2020-01-07", "--out", str(tmp_path / "bars.parquet")]
    assert cli.main(["data", "fetch", "--symbols", "S0", "S1", *span]) == 0
    assert cli.main(["data", "fetch", "--universe", "nifty25", *span]) == 0
    assert asked == [
        (("S0", "S1"), "2020-01-01", "2020-01-07", ""),
        (fetch.UNIVERSES["nifty25"].symbols, "2020-01-01", "2020-01-07", ".NS"),
    ]
    table = pd.read_parquet(tmp_path / "bars.parquet")
    assert len(table) == 10 and set(table["currency"]) == {"INR"}
    assert cli.main(["data", "fetch", *span]) == 2
    assert cli.main(["data", "fetch", "--universe", "dow30", *span[:-1], "bars.xls"]) == 2
    assert len(asked) == 2


def test_every_universe_can_be_fetched():
    (choices,) = (item.type for item in FetchSettings.__dataclass_fields__.values() if item.name == "universe")
    assert all(repr(name) in str(choices).replace('"', "'") for name in fetch.UNIVERSES)
