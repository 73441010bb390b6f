"""Every command of the shell in the pages runs, those of a page in their order, in a folder of its own."""

import io
import itertools
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.pages import NIGHTLY, PAGES, ROOT, ShellBlock, page_name, shell_blocks, shown_commands
from vecenv.language.supervised import SupervisedConfig
from vecenv.market import parquet_files, synthetic
from vecenv.system.preset_files import with_values
from vecenv.tasks.commands import applicable, cli, collect, play, serve, sft, train_settings
from vecenv.tasks.commands.evaluate import EvaluateSettings
from vecenv.tasks.crypto_lob.sources.synthetic import synthetic_snapshots
from vecenv.tasks.signals.news.headlines import HEADLINES
from vecenv.tasks.stock_trading.config import StockTradingConfig
from vecenv.tasks.tiers.config import TEN, TWENTY_FIVE

PROGRAMS = {
    "vecenv": [sys.executable, "-m", "vecenv.tasks.commands.cli"],
    "openenv": [sys.executable, "-m", "openenv.cli"],
    "python": [sys.executable],
}
FILES = {
    "prices.parquet": (("AAPL", "MSFT", "JPM"), "2019-01-01", 700),
    "india.parquet": (TWENTY_FIVE, "2020-06-01", 800),
    "nse.parquet": (TEN, "2020-06-01", 1250),
    "dow.parquet": (("AAPL", "MSFT", "JPM"), "2019-01-01", 600),
}
"""Symbols, first day and number of days of the files of bars that the pages read."""

TYPED, SECONDS = "BUY 0.5\nHOLD\nSELL\n", 300
"""Answers of a person who plays an episode, and the longest command of another process."""

NEEDS = {"vecenv sft": "transformers", "vecenv serve": "openenv", "vecenv worldmodel validate": "sklearn"}
"""Modules without which a command cannot run."""


def write_bars(path: Path, symbols: tuple[str, ...], first_day: str, num_days: int) -> None:
    bars = synthetic.synthetic_bars(1, num_days, symbols, seed=3).ohlcv[0].numpy()
    dates = np.busday_offset(np.datetime64(first_day), np.arange(num_days), roll="forward")
    names = ("open", "high", "low", "close", "volume")
    table = pd.DataFrame(bars.reshape(-1, 5), columns=names)
    table.insert(0, "date", np.repeat(dates, len(symbols)))
    table.insert(1, "symbol", np.tile(np.array(symbols, dtype=object), num_days))
    parquet_files.write_parquet(table, path)


def write_books(path: Path) -> None:
    """Write an hour of generated order books as snapshots, one a second."""
    books = synthetic_snapshots(hours=1.0)
    table = pd.DataFrame({"ts_ms": books.time, "symbol": "BTC-USD", "buy_qty": books.bought, "sell_qty": books.sold})
    for level, side in itertools.product(range(books.levels), ("bid", "ask")):
        table[f"{side}_px_{level}"] = getattr(books, f"{side}_price")[:, level]
        table[f"{side}_qty_{level}"] = getattr(books, f"{side}_size")[:, level]
    table.to_parquet(path)


def write_news(path: Path) -> None:
    """Write each headline on a day of its own, about three symbols by turns."""
    days = pd.bdate_range("2020-01-02", periods=len(HEADLINES)).strftime("%Y-%m-%dT08:30:00-05:00")
    symbols = [("AAPL", "MSFT", "JPM")[number % 3] for number in range(len(HEADLINES))]
    pd.DataFrame({"published_at": days, "symbol": symbols, "title": HEADLINES}).to_csv(path, index=False)


OTHERS = {"books.parquet": write_books, "news.csv": write_news}


def started(command: str, folder: Path) -> subprocess.Popen[str]:
    """Start a command of another process, which knows nothing of pytest."""
    program, *words = shlex.split(command)
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen([*PROGRAMS[program], *words], cwd=folder, env=own, **options)


def finished(command: str, folder: Path) -> None:
    """Run a command to its end, which must be a good one; ``vecenv`` in this process, which has imported it."""
    program, *words = shlex.split(command)
    if program == "vecenv":
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            patch.setattr("sys.stdin", io.StringIO(TYPED))
            assert cli.main(words) == 0, command
        return
    # Tests run in the project's own folder.
    with started(command, ROOT if " -m pytest " in command else folder) as process:
        try:
            told, _ = process.communicate(timeout=SECONDS)
        finally:
            process.kill()
    assert process.returncode == 0, f"{command}\n{told}"


@contextmanager
def serving(command: str, folder: Path) -> Iterator[None]:
    """Run a server until it says that it serves, and interrupt it in the end: it must tell so by its exit code."""
    process = started(command, folder)
    timer = threading.Timer(SECONDS, process.kill)
    timer.start()
    try:
        said = next((line for line in process.stdout if line.startswith("Serving ")), None)
        assert said is not None, f"it did not start: {command}"
        yield
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        assert process.returncode == 130, command
    finally:
        timer.cancel()
        process.kill()
        process.wait()


def run_block(block: ShellBlock, folder: Path) -> None:
    """Run the commands of a block: of servers one at a time, the last until the block ends."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    with ExitStack() as server:
        for command in block.run():
            command = command.replace("127.0.0.1:8000", f"127.0.0.1:{port}")
            if command.startswith("vecenv serve"):
                server.close()
                server.enter_context(serving(f"{command} --port {port}", folder))
            else:
                finished(command, folder)


MARKS = {page: pytest.mark.nightly if page_name(page) in NIGHTLY else pytest.mark.assembly for page in PAGES}
RUN = [pytest.param(page, marks=MARKS[page], id=page_name(page)) for page in PAGES if shell_blocks(page)]


@pytest.mark.parametrize("page", RUN)
def test_commands_of_a_page(page, tmp_path):
    blocks = shell_blocks(page)
    commands = "\n".join(command for block in blocks for command in block.run())
    for start, module in NEEDS.items():
        if start in commands:
            pytest.importorskip(module)
    for name in FILES.keys() & set(re.findall(r"\w+\.parquet", commands)):
        write_bars(tmp_path / name, *FILES[name])
    for name, write in OTHERS.items():
        if name in commands:
            write(tmp_path / name)
    for block in blocks:
        run_block(block, tmp_path)


def given_values(words: list[str]) -> dict:
    """Return what words of a command line give, as a preset would: values by setting, nested by their dots."""
    values: dict = {}
    for place, word in enumerate(words):
        if not word.startswith("--"):
            continue
        name, equals, value = word[2:].partition("=")
        after = itertools.takewhile(lambda each: not each.startswith("--"), words[place + 1 :])
        given = [value] if equals else list(after)
        *outer, own = name.replace("-", "_").split(".")
        inner = values
        for part in outer:
            inner = inner.setdefault(part, {})
        if given:
            inner[own] = given
        else:
            inner[own.removeprefix("no_")] = not own.startswith("no_")
    return values


def test_every_shown_command_fits_the_settings_of_its_command(monkeypatch):
    """Names and values are known, and each has an effect; what a page shows may take hours, and is only read."""
    # There is no such run here.
    monkeypatch.setattr(EvaluateSettings, "_trained", classmethod(lambda cls, place: cls(env=StockTradingConfig())))
    kinds = {
        "train": train_settings.TrainSettings,
        "evaluate": EvaluateSettings,
        "collect": collect.CollectSettings,
        "play": play.PlaySettings,
    }
    kinds |= {"serve": serve.ServeSettings, "sft": sft.SftSettings}
    seen = set()
    for command in dict.fromkeys(shown_commands()):
        program, *words = shlex.split(command)
        if program != "vecenv" or words[0] not in kinds:
            continue
        name, *words = (word for word in words if word != "--help")
        seen.add(name)
        settings, values = kinds[name].defaults(words), given_values(words)
        if name == "sft":
            own = values.keys() & {item.name for item in fields(SupervisedConfig)}
            values["training"] = {key: values.pop(key) for key in own}
        settings = with_values(settings, values, command)
        applicable.refuse_inapplicable(settings, words)
        if name == "train" and settings.model is None:
            settings.rows()
    assert seen == set(kinds)


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_no_shell_block_is_lost_and_every_mark_is_read(page):
    text = page.read_text()
    blocks = shell_blocks(page)
    assert len(blocks) == len(re.findall(r"^\s*```(?:sh|bash|shell|console|zsh)", text, re.MULTILINE))
    for block in blocks:
        for command in block.run():
            assert shlex.split(command)[0] in PROGRAMS, f"no test runs {command}"
    assert blocks or page_name(page) not in NIGHTLY
    comments = re.findall(r"^<!--", text, re.MULTILINE)
    assert len(comments) == sum(len(block.marks) for block in blocks), "a comment stands above no block"
