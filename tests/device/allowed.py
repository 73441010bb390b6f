"""How often host and device may meet: the whole list, by path and part, and how a path is held to it."""

import re
from typing import NamedTuple

from tests.device.trial import Trial, differing


class Allowed(NamedTuple):
    """Meetings in all of paths, a regular expression, by part: None where they grow with the market, or are many."""

    paths: str
    parts: dict[str, int | None]


TIER = r"(single_stock|single_stock_costs|multi_stock_3|portfolio|full_autonomous|curriculum) .*"
UNGRADED = "portfolio aligned|portfolio potential"
"""Tasks whose reward has the hindsight of the first grade."""

# A later row wins.
ALLOWED = (
    # TorchRL's reset looks whether any row is marked, and selects by masks; what a caller names by number is checked.
    Allowed(
        f"(stock_trading|signals|news_signals) .*|{TIER}",
        {"reset": 3, "partial reset": 14, "groups": 1, "copy rows": 5, "begin rows": 6, "save and load": 3},
    ),
    # Hindsight of the whole market is computed once.
    Allowed(f"(?!{UNGRADED})({TIER})", {"first grade": None}),
    # Text is written and read on the host; agents side by side look whether all have ended.
    Allowed(f"{TIER}|news_signals .*|market text", {"text": None}),
    Allowed("text tools", {"tools": None}),
    Allowed("agents .*", {"play": None}),
    # A warm-up: which rows are to be started, at every step of a rollout.
    Allowed("donated .* 3", {"restarting rollout": 12, "restart": 1}),
    Allowed("market (?!text).*", {"restarting rollout": 6}),
    # An update of a learner: which steps ended an episode, a draw of the buffer, the numbers of the log. To go on from
    # a state the digest of the market is compared.
    Allowed("(PPO|A2C) .*|ensemble symbol", {"update": 6, "save and load": None}),
    Allowed("CPPO .*|DDPG|TD3|SAC", {"update": 7, "save and load": None}),
    Allowed("PPO target_kl", {"update": 8}),
    Allowed("PPO curriculum", {"update": 11, "save and load": None}),
    Allowed("ensemble flat", {"update": 9, "save and load": None}),
    Allowed("CPPO risk", {"update": 6, "save and load": 3}),
    Allowed("DQN .*|SAC order books", {"update": 7, "save and load": 3}),
    Allowed("exact .*", {"update": 4, "save and load": None}),
    Allowed("GRPO .*", {"update": 20, "save and load": None}),
    Allowed("GRPO dapo", {"update": 21}),
    Allowed("GRPO gigpo", {"update": 24}),
    # A history is read once, before any day is drawn; two steps and a validation, which reads how likely common shocks
    # are; checkpoints and tapes are checked.
    # Paths begin with the moves of weekdays and two factorisations, which look whether they failed, and go on with one
    # more at a new level every five days.
    Allowed("worldmodel rollout", {"starts": None, "short rollout": 3, "rollout": 5}),
    Allowed("worldmodel densities", {"densities": None}),
    Allowed("worldmodel training", {"training": 17}),
    Allowed("worldmodel tape", {"tape": None}),
)


def faults(path: str, cpu: Trial, device: Trial, allowed: tuple[Allowed, ...] = ALLOWED) -> list[str]:
    """Say what is wrong with a path: results that differ, meetings that the list does not allow, and stale entries."""
    said = [f"{name} is not the same on the device" for name in differing(cpu, device)]
    left = {part: most for row in allowed if re.fullmatch(row.paths, path) for part, most in row.parts.items()}
    for part, meetings in device.meetings.items():
        said += [f"{part}: {meeting}" for meeting in meetings if meeting.inside]
        most, met = left.pop(part, 0), meetings.total()
        if most not in (None, met):
            lines = sorted(f"{count} x {meeting}" for meeting, count in meetings.items())
            said.append(f"{part}: {met} meetings, {most} allowed: {', '.join(lines)}")
    return said + [f"{part}: allowed and not met" for part in left]
