"""Pages: their Python and shell run, what they show fits the settings of commands, what they point at is there.

Comments that stand directly above a block of the shell, one a line, say what a test does otherwise than the block::

    <!-- small: OLD => NEW -->            run NEW wherever the block has OLD, with the options that `SIZES` names
    <!-- not run: START: REASON -->       leave out the commands of the block that begin with START

The gate runs every page whose commands take seconds that way, all but those of `NIGHTLY`.
"""

import io
import itertools
import os
import re
import runpy
import shlex
import subprocess
import sys
from contextlib import ExitStack
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import get_type_hints

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from vecenv import registry
from vecenv.market import indicators, parquet_files, synthetic
from vecenv.sandbox.jail import lacking
from vecenv.tasks.commands import cli, evaluate
from vecenv.tasks.crypto_lob.synthetic import synthetic_snapshots
from vecenv.tasks.experiment.checkpoints import write_settings
from vecenv.tasks.experiment.settings import NOT_IN_FILES
from vecenv.tasks.signals.news.headlines import HEADLINES
from vecenv.tasks.stock_trading.config import StockTradingConfig
from vecenv.tasks.tiers.config import TEN, TWENTY_FIVE
from vecenv.tasks.walk_forward.settings import WalkForwardSettings

ROOT = Path(__file__).parents[1]
ROOMS = ("vecenv", "worldmodel", "tasks", "benchmarks", "configs", "tests")
PAGES = sorted([*ROOT.glob("*.md"), *(path for room in ROOMS for path in (ROOT / room).rglob("*.md"))])

NOT_RUN = ("pip install", "docker", "vf-eval", "git clone", ".ci/run", ".ci/docs/build", "pytest", "pre-commit")
NOT_RUN += ("torchrun", "vecenv data fetch", "vecenv models fetch", "vecenv mcp")
NIGHTLY = ["benchmarks", "tasks", "tests/device", "worldmodel", "vecenv/adapters", "vecenv/language", "vecenv/learn"]
NIGHTLY += ["vecenv/curriculum", "worldmodel/validation", "tasks/walk_forward"]
NIGHTLY += ["tasks/agent_market", "tasks/crypto_lob", "tasks/signals", "tasks/stock_trading", "tasks/tiers"]
NIGHTLY += [f"tasks/games/{name}" for name in ("countdown", "frozen_lake", "race", "sokoban", "tool_chain")]
NIGHTLY = [*(f"{folder}/README.md" for folder in NIGHTLY), "benchmarks/results/order-books.md"]
NIGHTLY += ["benchmarks/results/planted-markets.md"]
NIGHTLY += [f"vecenv/learn/{name}.md" for name in ("ensembles", "evaluation", "grpo")]
NIGHTLY += ["vecenv/learn/off_policy.md", "vecenv/learn/on_policy.md", "vecenv/distributed/eight_gpus.md"]
"""Pages whose commands take minutes even when they are small."""

_FENCE = re.compile(r"((?:^<!--[^\n]*-->\n)*)^```(?:sh|bash|shell|console)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_MARK = re.compile(r"<!-- (small|not run): (.+) -->")
SIZES = {"TINY": "--no-compile --num-envs 16 --episodes 8 --learner.total-frames 1024"}
SIZES["VALIDATED"] = "--validation-episodes 4 --evaluations 2"

PROGRAMS = {"vecenv": [], "openenv": [sys.executable, "-m", "openenv.cli"], "python": [sys.executable]}
"""How the programs of the pages begin in a process of their own; vecenv runs in this one."""
FILES = {
    "prices.parquet": (("AAPL", "MSFT", "JPM"), "2019-01-01", 700),
    "india.parquet": (TWENTY_FIVE, "2020-06-01", 800),
    "nse.parquet": (TEN, "2020-06-01", 1250),
    "dow.parquet": (("AAPL", "MSFT", "JPM"), "2019-01-01", 600),
}
"""Symbols, first day and number of days of the files of bars that the pages read."""

TYPED, SECONDS = "BUY 0.5\nHOLD\nSELL\nDown\nDown\n", 300
"""What a person types who plays an episode, of trading or on a grid, and the longest command of another process."""

NEEDS = {"vecenv sft": "transformers", "vecenv serve": "openenv", "vecenv worldmodel validate": "sklearn"}
NEEDS |= {"vecenv train --engine ray": "ray", "vecenv serve --engine ray": "ray", "vecenv sweep": "optuna"}
"""Modules without which a command cannot run."""


def page_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def shell_blocks(page: Path) -> list[tuple[str, list[str]]]:
    """Return the text of each block of the shell as it is shown, and the comments directly above it."""
    return [(block, marks.splitlines()) for marks, block in _FENCE.findall(page.read_text())]


def commands_run(text: str, marks: list[str]) -> list[str]:
    shown, left_out = commands_of(text), []
    for mark in marks:
        found = _MARK.fullmatch(mark)
        assert found, f"{mark}: not one of <!-- small: OLD => NEW --> and <!-- not run: START: REASON -->"
        if found[1] == "not run":
            start, _, reason = found[2].partition(": ")
            meant = [command for command in shown if command.startswith(start)]
            assert reason and meant and start.startswith(NOT_RUN), f"{mark}: not of this block, or to be run"
            left_out += meant
        else:
            old, arrow, new = found[2].partition(" => ")
            assert arrow and old in text, f"{mark}: what is replaced must stand in the block"
            for name, options in SIZES.items():
                new = new.replace(name, options)
            text = text.replace(old, new)
    return [command for command in commands_of(text) if command not in left_out]


def skip_without_jail() -> None:
    if missing := lacking():
        pytest.skip(f"no jail here: {dict(missing)}")


def commands_of(text: str) -> list[str]:
    lines = text.replace("\\\n", " ").splitlines()
    parts = [part for line in lines for part in shlex.join(shlex.split(line, comments=True)).split(" '&&' ")]
    return [part for part in parts if part]


def write_bars(path: Path, symbols: tuple[str, ...], first_day: str, num_days: int) -> None:
    bars = synthetic.synthetic_bars(1, num_days, symbols, seed=3).ohlcv[0].numpy()
    dates = np.busday_offset(np.datetime64(first_day), np.arange(num_days), roll="forward")
    names = ("open", "high", "low", "close", "volume")
    table = pd.DataFrame(bars.reshape(-1, 5), columns=names)
    table.insert(0, "date", np.repeat(dates, len(symbols)))
    table.insert(1, "symbol", np.tile(np.array(symbols, dtype=object), num_days))
    parquet_files.write_parquet(table, path)


def write_markets(text: str, folder: Path) -> None:
    """Write the files of bars that a text names."""
    for name in FILES.keys() & set(re.findall(r"\w+\.parquet", text)):
        write_bars(folder / name, *FILES[name])


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


def write_program(path: Path) -> None:
    path.write_text("weight = (0.3 if close > mean(close, bars=20) else 0) if gain > -0.05 else held / 2\n")


def write_sweep(path: Path) -> None:
    """Write the sweep of the page of sweeps, on fewer and shorter episodes."""
    text = (ROOT / "tasks" / "sweep" / "README.md").read_text().partition("```yaml\n")[2].partition("```")[0]
    small = {"quick\n": "quick\nmarket: planted\nsymbols: [A, B]\nnum_envs: 16\nepisodes: 8\ncompile: false\n"}
    for old, new in (small | {"131_072": "1024\n  num_steps: 16", "evaluations: 8": "evaluations: 2"}).items():
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)


def write_account(path: Path) -> None:
    path.write_text("symbol,shares\nAAPL,120\nMSFT,80\nCASH,25000\n")


OTHERS = {"sweep.yaml": write_sweep, "trend.txt": write_program, "books.parquet": write_books, "news.csv": write_news}
OTHERS |= {"account.csv": write_account}


def finished(command: str, folder: Path) -> None:
    """Run a command to its end, which must be a good one; ``vecenv`` in this process, which has imported it."""
    program, *words = shlex.split(command)
    if program == "vecenv":
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            patch.setattr("sys.stdin", io.StringIO(TYPED))
            assert cli.main(words) == 0, command
        return
    # Another process knows nothing of pytest; tests run in the project's own folder.
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "env": own, "timeout": SECONDS}
    told = subprocess.run([*PROGRAMS[program], *words], cwd=ROOT if " -m pytest " in command else folder, **options)
    assert told.returncode == 0, f"{command}\n{told.stdout}"


def run_all(commands: list[str], folder: Path) -> None:
    """Run the commands of a block: of servers one at a time, the last until the block ends."""
    with ExitStack() as server:
        for command in commands:
            if command.startswith("vecenv serve"):
                from tests.adapters.served_market import serving

                server.close()
                words = shlex.split(command)[2:]
                _, url, _ = server.enter_context(serving(*words, "--port", "0", folder=folder))
            else:
                finished(command.replace(SERVER, url) if SERVER in command else command, folder)


MARKS = {page: pytest.mark.nightly if page_name(page) in NIGHTLY else pytest.mark.assembly for page in PAGES}
RUN = [pytest.param(page, marks=MARKS[page], id=page_name(page)) for page in PAGES if shell_blocks(page)]


@pytest.mark.parametrize("page", RUN)
def test_commands_of_a_page(page, tmp_path, monkeypatch):
    if page_name(page) not in [*NIGHTLY, "README.md"]:
        # To draw pictures takes a third of a small training, and the first page draws them.
        drawn = Figure.savefig

        def touched(figure, path, **how):
            """Those of a report are drawn into memory, and part of its page."""
            return Path(path).touch() if isinstance(path, str | Path) else drawn(figure, path, **how)

        monkeypatch.setattr(Figure, "savefig", touched)
    blocks = [commands_run(*block) for block in shell_blocks(page)]
    commands = "\n".join(itertools.chain(*blocks))
    for start, module in NEEDS.items():
        if start in commands:
            pytest.importorskip(module)
    if "vecenv sandbox" in commands or "--task code" in commands:
        skip_without_jail()
    write_markets(commands, tmp_path)
    for name, write in OTHERS.items():
        if name in commands:
            write(tmp_path / name)
    for block in blocks:
        run_all(block, tmp_path)


def test_every_shown_command_fits_the_settings_of_its_command(monkeypatch, tmp_path):
    """Names and values are known, and each has an effect; what a page shows may take hours, and is only read."""
    # There is no such run here.
    known = {"task": "stock_trading", "env": StockTradingConfig()}
    monkeypatch.setattr(evaluate, "trained_under", lambda place: known)
    # Settings of several processes are read by this one, which starts none.
    monkeypatch.setattr(cli, "launched", lambda count, words: None)
    monkeypatch.chdir(tmp_path)
    # An account is read with the settings.
    write_account(tmp_path / "account.csv")
    points, seen = {point.name: point for point in (*cli.COMMANDS, *entry_points(group=cli.GROUP))}, set()

    def read(settings):
        # `walk-forward --resume` has the settings of the walk that it goes on with.
        if isinstance(settings, WalkForwardSettings) and settings.folder is not None:
            settings.folder.mkdir(parents=True, exist_ok=True)
            write_settings(settings.folder, settings, NOT_IN_FILES)
        return {}

    shown = [command for page in PAGES for text, _ in shell_blocks(page) for command in commands_of(text)]
    for command in dict.fromkeys(shown):
        # Also what torchrun starts.
        program, *words = shlex.split(re.sub(r"^.*torchrun .* -m vecenv ", "vecenv ", command))
        if program == "vecenv":
            print(command)
            name, *words = (word for word in words if word != "--help")
            seen.add(name)
            read.__annotations__ = get_type_hints(points[name].load(), include_extras=True)
            cli._run(read, name, words)
    assert seen >= {point.name for point in cli.COMMANDS}
    assert set(NIGHTLY) <= {page_name(page) for page in PAGES if shell_blocks(page)}


def test_marks_say_what_is_run_and_those_that_do_not_fit_are_refused():
    block = "pip install x && vecenv train --seed 1 \\\n    --episodes 2  # why\nvecenv play\n"
    fitting = ["<!-- small: vecenv train => vecenv train --preset quick -->", "<!-- not run: pip install: it is -->"]
    assert commands_run(block, fitting) == ["vecenv train --preset quick --seed 1 --episodes 2", "vecenv play"]
    for mark in (
        "smaller: vecenv train => vecenv train --help",
        "small: vecenv evaluate => vecenv",
        "small: vecenv train",
        "not run: vecenv train: it takes long",
        "not run: pip install",
        "not run: pip uninstall: there is none",
    ):
        with pytest.raises(AssertionError, match=f"<!-- {mark} -->: "):
            commands_run(block, [f"<!-- {mark} -->"])


SERVER = "http://127.0.0.1:8000"
SMALLER = {"2048": "64", 'market="synthetic", seed=0)': 'market="synthetic", seed=0, compile=False)', "256 * 5": "256"}
"""Fewer rows compute the same things sooner, and other tests compile."""

BLOCKS = [
    pytest.param(text, id=f"{page_name(page)}-{number}")
    for page in PAGES
    for number, text in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
]


@pytest.mark.assembly
@pytest.mark.parametrize("block", BLOCKS)
def test_python_block(block, tmp_path, monkeypatch):
    for old, new in SMALLER.items():
        block = block.replace(old, new)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_registered", {})
    monkeypatch.setattr(indicators, "_registered", {})
    write_markets(block, tmp_path)
    if "vecenv.sandbox" in block or '"code"' in block:
        skip_without_jail()
    (tmp_path / "block.py").write_text(block)
    runpy.run_path("block.py")


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_what_a_page_points_at_exists_no_shell_block_is_lost_and_every_mark_is_read(page):
    text, blocks = page.read_text(), shell_blocks(page)
    for module in re.findall(r"python -m (vecenv(?:\.[a-z_]+)+)(?![\w.]*[A-Z])", text):
        assert page.name == "CHANGELOG.md" or find_spec(module) is not None, module
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"https?:", target):
            file, _, heading = target.partition("#")
            found = Path(os.path.normpath(page.parent / file)) if file else page
            assert found.exists(), target
            if heading:
                headings = re.findall(r"^#+ (.*)$", found.read_text(), re.MULTILINE)
                assert heading in {re.sub(r"[^\w -]", "", name).lower().replace(" ", "-") for name in headings}, target
    assert len(blocks) == len(re.findall(r"^\s*```(?:sh|bash|shell|console|zsh)", text, re.MULTILINE))
    for block in blocks:
        for command in commands_run(*block):
            assert shlex.split(command)[0] in PROGRAMS, f"no test runs {command}"
    assert text.count("```python\n") == len(re.findall(r"^\s*```py", text, re.MULTILINE))
    comments = re.findall(r"^<!--", text, re.MULTILINE)
    assert len(comments) == sum(len(marks) for _, marks in blocks), "a comment stands above no block"


def test_pages_of_rooms_are_read_in_a_sitting_and_the_first_one_at_a_glance():
    words = {page_name(page): len(page.read_text().split()) for page in PAGES if page.name != "CHANGELOG.md"}
    words = {name: count for name, count in words.items() if not name.startswith("benchmarks/results/")}
    assert {name: count for name, count in words.items() if count > 1500} == {}
    assert sum(words.values()) <= 45_000
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def test_the_index_of_results_lists_every_page():
    folder = ROOT / "benchmarks" / "results"
    listed = re.findall(r"\]\(([\w-]+\.md)\)", (folder / "README.md").read_text())
    assert sorted(listed) == sorted({page.name for page in folder.glob("*.md")} - {"README.md"})
