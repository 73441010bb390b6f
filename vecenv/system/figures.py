"""The style of all pictures: colours and lines by agent, sizes, dates, legends; in PNG files and in HTML pages."""

from __future__ import annotations

import io
import re
import textwrap
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#882255", "#000000", "#F0E442")
"""Okabe and Ito's palette for colour-blind readers, and a wine red: for what is no agent, such as symbols."""

_BLUE, _VERMILION, _GREEN, _PURPLE, _ORANGE, _SKY, _WINE, _BLACK, _ = COLOURS

GREY = "#8a8f98"
"""Colour of lines that only guide the eye."""

_Dashes = str | tuple[float, tuple[float, ...]]

TRAINED: tuple[str, _Dashes] = (_BLUE, (0, (4, 2)))
"""Colour and dashes of the trained agent: through the gaps of the uppermost line those below it are seen."""

AGENTS: dict[str, tuple[str, _Dashes]] = {
    "trained": TRAINED,
    "untrained": (_VERMILION, (0, (1, 1))),
    "initial": (_VERMILION, "--"),
    "ensemble": ("#332288", "-"),
    "best_rule": (_BLACK, "-"),
    "hold": (_GREEN, "-"),
    "random": (_PURPLE, "-"),
    "equal_weight": (_ORANGE, "-"),
    "buy_and_hold": (_SKY, "-"),
    "oracle": (_WINE, "-"),
    "hindsight": (_WINE, "-"),
}
"""Colour and dashes of agents that several families have."""

SEEDS = (_BLUE, "#4C9BCB", "#004B75", "#7FB8D8", "#002F4A")
"""Colours of trained agents by seed, cyclic."""

OTHERS: list[tuple[str, _Dashes]] = [
    (colour, dashes)
    for dashes in ("--", "-.", ":")
    for colour in ("#117733", "#AA4499", "#999933", "#8C564B", "#44AA99", "#777777", "#661100")
]
"""Colours and dashes of all other agents. Dashed, so that a colour like another's is not all that tells them apart."""

FAMILIES = (
    "random_any invalid rule_based",
    "fair_value momentum",
    "twap vwap passive improving at_once",
    "fixed_spread_1 fixed_spread_2 fixed_spread_4 fixed_spread_8 fixed_spread_16 fixed_spread_32 avellaneda_stoikov",
    "long short imbalance",
    "equal_weight_moved follow_sentiment avoid_risk",
    "silent lexicon reader filter",
    "rsi crossover random_programs best_of_random genetic",
    "right repairs wrong",
    "all_tests shown_tests calls",
    "blind greedy solver shortest_way to_the_finish first_match explorer planner",
)
"""Agents that only one family has, in the order of their looks among `OTHERS`."""

AGENTS |= {name: look for family in FAMILIES for name, look in zip(family.split(), OTHERS, strict=False)}


@dataclass(frozen=True)
class Look:
    """How an agent is drawn; the ``subject`` of a picture lies above the others, in a wider line."""

    colour: str
    dashes: _Dashes
    subject: bool
    height: float

    def line(self) -> dict[str, Any]:
        """Return the arguments of `Axes.plot`."""
        width = 2.4 if self.subject else 1.5
        return {"color": self.colour, "linestyle": self.dashes, "linewidth": width, "zorder": self.height}


def looks(names: Iterable[str]) -> dict[str, Look]:
    """Return how each of the agents of a picture is drawn: by its name, the same in every picture.

    The subject is ``trained``, or else the first one, which without a look of its own takes that of ``trained``. Agents
    that are not in `AGENTS` take one of `OTHERS` that no other in the picture has.
    """
    names = list(names)
    subject = "trained" if "trained" in names else names[0]
    found = {name: look for name in names if (look := _own_look(name))}
    if subject not in found:
        found[subject] = TRAINED
    for name in names:
        if name not in found:
            start = zlib.crc32(name.encode())
            free = [OTHERS[(start + step) % len(OTHERS)] for step in range(len(OTHERS))]
            found[name] = next((look for look in free if look not in found.values()), free[0])
    # Above grids and bands, the earlier ones above the later ones.
    return {
        name: Look(*found[name], name == subject, 3.0 if name == subject else 2.9 - 0.5 * place / len(names))
        for place, name in enumerate(names)
    }


def _own_look(name: str) -> tuple[str, _Dashes] | None:
    if seed := re.fullmatch(r"trained_(\d+)", name):
        number = int(seed[1])
        return SEEDS[number % len(SEEDS)], (TRAINED[1], "-", "--", "-.", ":")[number % len(SEEDS)]
    # Pages write names with spaces.
    return AGENTS.get(name.replace(" ", "_"))


_STYLE: dict[Any, Any] = {
    "font.size": 11.5,
    "figure.titlesize": 11.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.3,
    "axes.edgecolor": GREY,
    "svg.fonttype": "none",
}
_PAGE_STYLE = _STYLE | {"font.size": 10, "font.family": "sans-serif"}

WIDTH, DPI = 7.0, 170
"""Width of pictures in inches, and points an inch: letters can still be read where the picture is 390 points wide."""

WIDE, NARROW = 10.0, 4.6
"""Widths of figures of pages in inches: for a screen, and for a telephone."""

TITLE_LETTERS = 76
"""Letters of a line of a title."""


def empty_figure(
    rows: int, columns: int, height: float, share: str = "x", width: float = WIDTH
) -> tuple[Figure, list[Axes]]:
    """Return a figure with the Agg canvas, without a window, and its panels; ``share`` is ``x`` or ``y``."""
    return _panels(_STYLE, (width, height), rows, columns, sharex=share == "x", sharey=share == "y")


def page_figure(heights: Sequence[float], height: float, width: float = WIDE) -> tuple[Figure, list[Axes]]:
    """Return an empty figure of a page, of stacked axes; sizes are in inches."""
    return _panels(_PAGE_STYLE, (width, height), len(heights), 1, sharex=True, height_ratios=heights)


def _panels(
    style: dict[Any, Any],
    size: tuple[float, float],
    *shape: int,
    **share: Any,  # noqa: ANN401
) -> tuple[Figure, list[Axes]]:
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with rc_context(style):
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(figure)
        return figure, list(figure.subplots(*shape, squeeze=False, **share).flat)


def entitle(figure: Figure, *lines: str) -> None:
    """Write lines above a figure, wrapped to its width."""
    letters = int(TITLE_LETTERS * figure.get_size_inches()[0] / WIDTH)
    figure.suptitle("\n".join("\n".join(textwrap.wrap(line, letters)) for line in lines))


def legend_below(figure: Figure, *panels: Axes) -> None:
    """Write one legend below all panels: what they show, or those that are given, each name once."""
    shown: dict[str, Any] = {}
    for axis in panels or figure.axes:
        shown |= {label: handle for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    widest = max(map(len, shown), default=0)
    columns = max(1, int(figure.get_size_inches()[0] * 72 / (6.5 * widest + 44)))
    figure.legend(
        [*shown.values()], [*shown], loc="outside lower center", ncols=min(columns, len(shown) or 1), frameon=False
    )


def dated(axes: Axes, width: float = WIDTH) -> None:
    """Write the dates of an axis, as many as its width has room for."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    locator = AutoDateLocator(maxticks=max(4, int(width)))
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
    axes.margins(x=0.01)


def save(figure: Figure, path: Path) -> None:
    """Write a picture as a PNG file."""
    figure.savefig(path, dpi=DPI)


def at_widths(draw: Callable[[float], Figure]) -> str:
    """Return a figure as SVG elements drawn for both widths, of which a page shows the one that fits."""
    return f'<div class="broad">{svg(draw(WIDE))}</div><div class="narrow">{svg(draw(NARROW))}</div>'


def svg(figure: Figure) -> str:
    """Return a figure as an SVG element without the XML header."""
    from matplotlib import rc_context

    target = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with rc_context(_PAGE_STYLE):
        figure.savefig(target, format="svg", transparent=True, metadata=nothing)
    _, tag, rest = target.getvalue().partition("<svg")
    return tag + rest
