"""What agents that read and write text are shown, and the tools that they call, as paths that run on a device."""

from __future__ import annotations

from tests.device.task_paths import make
from tests.device.trial import Path, Trial
from vecenv.text.door import TextDoor
from vecenv.text.tool_calls import ToolCall
from vecenv.text.turns import TextRows, TextRules

CALLS = (
    ToolCall("what_if", {"orders": "BUY TCS 0.2"}),
    ToolCall("price_history", {"symbol": "TCS", "days": 5}),
    ToolCall("position", {"symbol": "TCS"}),
    ToolCall("indicator", {"name": "rsi_14", "symbol": "TCS", "days": 3}),
)

TEXT_PATHS: dict[str, Path] = {}


def text_turns(trial: Trial) -> None:
    """Play days in words, with a tool in between."""
    env = make(trial.device, task="portfolio", action="orders")
    rows = TextRows(env, TextRules(tools=("all",), grade=1.0, steps=0.1))
    with trial.part("begin"):
        trial.keep("told", [rows.instructions([0, 1]), rows.begin([0, 1])])
    with trial.part("a tool"):
        turns = rows.answer([0, 1], ['{"tool": "position", "symbol": "TCS"}', '{"tool": "account"}'])
    trial.keep("tool", [tuple(turn) for turn in turns])
    with trial.part("a day"):
        turns = rows.answer([0, 1], ["BUY TCS 0.2", "nothing of the kind"])
    trial.keep("day", [tuple(turn) for turn in turns])


def tools(trial: Trial) -> None:
    """Call every kind of tool."""
    env = make(trial.device, task="portfolio", action="orders")
    offered = TextDoor(env).text.tools(["all"])
    with trial.part("tools"):
        trial.keep("tools", TextDoor(env).tool_results(offered, CALLS, range(len(CALLS))))


TEXT_PATHS |= {"text turns": text_turns, "text tools": tools}
