"""Every command of the shell in the pages runs, those of a page in their order, in a folder of its own."""

from __future__ import annotations

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

from tests.book_files import write_books
from tests.news_files import write_news
from tests.pages import NIGHTLY, PAGES, ROOT, ShellBlock, blocks_of, page_name, shell_blocks, shown_commands
from vecenv.language.supervised import SupervisedConfig
from vecenv.market.parquet_files import write_parquet
from vecenv.market.synthetic import synthetic_bars
from vecenv.system.preset_files import with_values
from vecenv.tasks.commands import cli
from vecenv.tasks.commands.applicable import refuse_inapplicable
from vecenv.tasks.commands.collect import CollectSettings
from vecenv.tasks.commands.evaluate import EvaluateSettings
from vecenv.tasks.commands.play import PlaySettings
from vecenv.tasks.commands.serve import ServeSettings
from vecenv.tasks.commands.sft import SftSettings
from vecenv.tasks.commands.train_settings import TrainSettings
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
"""Symbols, first day and number of days of the files that the pages read."""

BOOKS = "books.parquet"
"""File of order books that the pages read."""

NEWS = "news.csv"
"""File of news that the pages read."""

TYPED = "BUY 0.5\nHOLD\nSELL\n"
"""Answers of a person who plays an episode."""

SECONDS = 300
"""Longest command of another process."""

NEEDS = {"vecenv sft": "transformers", "vecenv serve": "openenv", "vecenv worldmodel validate": "sklearn"}
"""Modules without which a command cannot run."""


def write_bars(path: Path, symbols: tuple[str, ...], first_day: str, num_days: int) -> None:
    """Write daily bars of a synthetic market, with dates of our own."""
    bars = synthetic_bars(1, num_days, symbols, seed=3).ohlcv[0].numpy()
    dates = np.busday_offset(np.datetime64(first_day), np.arange(num_days), roll="forward")
    names = ("open", "high", "low", "close", "volume")
    table = pd.DataFrame(bars.reshape(-1, 5), columns=names)
    table.insert(0, "date", np.repeat(dates, len(symbols)))
    table.insert(1, "symbol", np.tile(np.array(symbols, dtype=object), num_days))
    write_parquet(table, path)


def words_of(command: str) -> list[str]:
    """Return the words of a command, those of programs as this Python runs them."""
    program, *words = shlex.split(command)
    return [*PROGRAMS[program], *words]


def environment() -> dict[str, str]:
    """Return the variables of this process, without those by which pytest tells of itself."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}


def finished(command: str, folder: Path) -> None:
    """Run a command to its end, which must be a good one; ``vecenv`` in this process, which has imported it."""
    program, *words = shlex.split(command)
    if program == "vecenv":
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            patch.setattr("sys.stdin", io.StringIO(TYPED))
            assert cli.main(words) == 0, command
        return
    done = subprocess.run(
        words_of(command),
        # Tests run in the project's own folder.
        cwd=ROOT if " -m pytest " in command else folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}"


@contextmanager
def serving(command: str, folder: Path) -> Iterator[None]:
    """Run a server until it says that it serves, and interrupt it in the end: it must tell so by its exit code."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = subprocess.Popen(words_of(command), cwd=folder, env=environment(), **options)
    assert process.stdout is not None
    timer = threading.Timer(SECONDS, process.kill)
    timer.start()
    try:
        said = []
        for line in process.stdout:
            said.append(line)
            if line.startswith("Serving "):
                break
        else:
            raise AssertionError(f"{command}\n{''.join(said)}")
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


def marked(page: Path):
    """Return a page with the mark of when its commands run."""
    mark = pytest.mark.nightly if page_name(page) in NIGHTLY else pytest.mark.assembly
    return pytest.param(page, marks=mark, id=page_name(page))


@pytest.mark.parametrize("page", [marked(page) for page in PAGES if shell_blocks(page)])
def test_commands_of_a_page(page, tmp_path):
    blocks = shell_blocks(page)
    commands = "\n".join(command for block in blocks for command in block.run())
    for start, module in NEEDS.items():
        if start in commands:
            pytest.importorskip(module)
    for name in FILES.keys() & set(re.findall(r"\w+\.parquet", commands)):
        write_bars(tmp_path / name, *FILES[name])
    if BOOKS in commands:
        write_books(tmp_path / BOOKS)
    if NEWS in commands:
        write_news(tmp_path / NEWS)
    for block in blocks:
        run_block(block, tmp_path)


def test_pages_of_the_night_are_pages():
    assert set(NIGHTLY) <= {page_name(page) for page in PAGES if shell_blocks(page)}


def given_values(words: list[str]) -> dict:
    """Return what words of a command line give, as a preset would: values by setting, nested by their dots."""
    values: dict = {}
    for place, word in enumerate(words):
        if not word.startswith("--"):
            continue
        name, equals, value = word[2:].partition("=")
        given = (
            [value] if equals else list(itertools.takewhile(lambda each: not each.startswith("--"), words[place + 1 :]))
        )
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
    kinds = {"train": TrainSettings, "evaluate": EvaluateSettings, "collect": CollectSettings, "play": PlaySettings}
    kinds |= {"serve": ServeSettings, "sft": SftSettings}
    seen = set()
    for command in dict.fromkeys(shown_commands()):
        program, *words = shlex.split(command)
        if program != "vecenv" or words[0] not in kinds:
            continue
        name, *words = (word for word in words if word != "--help")
        seen.add(name)
        settings, values = kinds[name].defaults(words), given_values(words)
        if name == "sft":
            own = {item.name for item in fields(SupervisedConfig)}
            values = {key: value for key, value in values.items() if key not in own} | {
                "training": {key: value for key, value in values.items() if key in own}
            }
        settings = with_values(settings, values, command)
        refuse_inapplicable(settings, words)
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
    comments = re.findall(r"^<!--", text, re.MULTILINE)
    assert len(comments) == sum(len(block.marks) for block in blocks), "a comment stands above no block"


def test_marks_say_what_is_run():
    (block,) = blocks_of(
        "<!-- small: vecenv train => vecenv train --preset quick -->\n"
        "<!-- not run: pip install: it installs -->\n"
        "```bash\npip install x && vecenv train --seed 1 \\\n    --episodes 2  # why\n```\n"
    )
    assert block.shown() == ["pip install x", "vecenv train --seed 1 --episodes 2"]
    assert block.run() == ["vecenv train --preset quick --seed 1 --episodes 2"]


@pytest.mark.parametrize(
    "mark",
    [
        "<!-- smaller: vecenv train => vecenv train --help -->",
        "<!-- small: vecenv evaluate => vecenv -->",
        "<!-- small: vecenv train -->",
        "<!-- not run: vecenv train: it takes long -->",
        "<!-- not run: pip install -->",
        "<!-- not run: pip uninstall: there is none -->",
    ],
)
def test_a_mark_that_does_not_fit_is_refused(mark):
    (block,) = blocks_of(f"{mark}\n```sh\npip install x\nvecenv train\nvecenv play\n```\n")
    with pytest.raises(ValueError, match=r"small|not run"):
        block.run()
