"""Where host and device may meet: the whole list, by path and part, and how a path is held to it."""

from __future__ import annotations

import re
from collections import Counter
from typing import NamedTuple

from tests.device.trial import Trial, differing

ITEM = "_local_scalar_dense"
"""What ``.item()``, ``float()``, ``int()``, ``bool()`` and ``if`` of a tensor are."""

UP, DOWN, MASK, SOME = "to device", "to host", "mask", "nonzero"
ANY = "anything"


class Allowed(NamedTuple):
    """Meetings at one place.

    Attributes:
        paths: regular expression of the paths that have them.
        part: of the path, or several with ``|`` between them.
        place: regular expression of file and function.
        meetings: how many by what they are, as in `Meeting`; None where it grows with the market.
    """

    paths: str
    part: str
    place: str
    meetings: dict[str, int | None]


HOST: dict[str, int | None] = {ANY: None}
"""What is read and written on the host meets the device as often as it likes."""

TIER = r"(single_stock|single_stock_costs|multi_stock_3|portfolio|full_autonomous|curriculum) .*"
TASK = f"(stock_trading|signals|news_signals) .*|{TIER}"
GRADED = "portfolio aligned|portfolio potential"
LEARNER = "(PPO|CPPO|A2C|DQN|GRPO|exact) .*|DDPG|TD3|SAC.*"
GRPO, EXACT, AGENTS, ENSEMBLE = "GRPO .*", "exact .*", "agents .*", "ensemble .*"
SAMPLING, DQN = "(PPO|CPPO|A2C|DQN|GRPO) .*|DDPG|TD3|SAC.*", "DQN .*"
ON_BARS = "(PPO|CPPO(?! risk)|A2C|GRPO|exact) .*|DDPG|TD3|SAC"
ON_POLICY, REPLAY = "(PPO|CPPO|A2C) .*", "DQN .*|DDPG|TD3|SAC.*"
WITH_ENDS = f"C?PPO (?!curriculum|risk).*|A2C .*|{REPLAY}|{GRPO}|{EXACT}"
CHECKS, METRICS, LEARN = "vecenv/core/tensor_checks.py", "vecenv/learn/episode_metrics.py", "vecenv/learn"
REFERENCES, HINDSIGHT = "tasks/tiers/grading.py references", "vecenv/market/hindsight.py _chosen"
PREPARED = "vecenv/core/row_buffers.py Restarts.prepare"
TEXTS = "(tasks/.*/text/|tasks/tiers/tools|vecenv/text/|vecenv/core/tensor_checks).*"
MARKET, MARKET_ROWS = "market (?!text).*", "vecenv/market/account.py MarketAccount.market_rows"
FINGERPRINT = "vecenv/market/tape.py MarketTape.fingerprint"
SCHEDULE = "tasks/tiers/curriculum.py CurriculumSchedule.update"
PROMOTION = "tasks/tiers/curriculum_schedulers.py Promotion"
REPEATABLE = "worldmodel/network/transformer.py Cache.repeatable"

ALLOWED = (
    # TorchRL's reset looks whether any row is marked, and selects by masks.
    Allowed(TASK, "reset", "tests/device/task_paths.py _task", {ITEM: 3}),
    Allowed(TASK, "partial reset", "tests/device/task_paths.py _rows", {ITEM: 7, MASK: 3, UP: 4}),
    # What a caller names by number is looked at before it is used.
    Allowed(TASK, "groups", f"{CHECKS} checked_integers", {ITEM: 1}),
    Allowed(TASK, "copy rows", f"{CHECKS} row_numbers", {ITEM: 4}),
    Allowed(TASK, "begin rows", f"{CHECKS} row_numbers", {ITEM: 2, UP: 1}),
    Allowed(TASK, "copy rows|begin rows", f"{CHECKS} distinct", {"_unique2": 1}),
    Allowed(TASK, "begin rows", f"{CHECKS} checked_integers", {ITEM: 2}),
    Allowed(f"{TASK}|{LEARNER}|{ENSEMBLE}", "save and load", f"{CHECKS} checked_integers", {ITEM: 3}),
    # Hindsight of the whole market, computed once: at the first grade, or before where the reward needs it.
    Allowed(f"(?!{GRADED}|single_stock random)({TIER})", "first grade", REFERENCES, {UP: None}),
    Allowed(f"(?!{GRADED})({TIER})", "first grade", HINDSIGHT, {UP: None}),
    # A warm-up: which rows are to be started, at every step of a rollout.
    Allowed("donated .* 3", "restarting rollout", PREPARED, {SOME: 12}),
    Allowed("donated .* 3", "restart", "vecenv/core/episode_rows.py EpisodeRows.restart", {SOME: 1}),
    Allowed(MARKET, "restarting rollout", PREPARED, {SOME: 6}),
    # Text is written and read on the host.
    Allowed(f"{TIER}|news_signals .*|market text", "text", TEXTS, HOST),
    Allowed("text turns", "begin|a tool|a day", TEXTS, HOST),
    Allowed("text turns", "begin", f"{REFERENCES}|{HINDSIGHT}", {UP: None}),
    Allowed("text tools", "tools", TEXTS, HOST),
    # An update of a learner: which steps ended an episode, and the numbers of the log.
    Allowed(LEARNER, "update", f"{METRICS} rollout_metrics", {SOME: 1}),
    Allowed(SAMPLING, "update", f"{METRICS} episode_metrics", {ITEM: 1}),
    Allowed(ON_BARS, "update", MARKET_ROWS, {"_unique2": 1}),
    Allowed(WITH_ENDS, "update", f"{METRICS} outcomes", {ITEM: 2}),
    Allowed("CPPO risk", "update", f"{METRICS} outcomes", {ITEM: 1}),
    Allowed(SAMPLING, "update", f"{LEARN}/learner.py Learner.minimise", {DOWN: 1}),
    Allowed(EXACT, "update", f"{LEARN}/exact.py Exact.make_update", {DOWN: 1}),
    Allowed(f"{ON_BARS}|{ENSEMBLE}", "save and load", FINGERPRINT, {DOWN: None}),
    Allowed("C?PPO signals", "save and load", "vecenv/market/panels.py Panels.digest", {DOWN: None}),
    Allowed(f"{ON_POLICY}|ensemble flat", "update", f"{LEARN}/on_policy.py OnPolicyLearner.advantages", {SOME: 1}),
    Allowed(ON_POLICY, "update", f"{LEARN}/on_policy.py OnPolicyLearner.learn", {ITEM: 1}),
    Allowed("CPPO .*", "update", f"{LEARN}/cppo.py _TailsPenalised.told_metrics", {DOWN: 1}),
    Allowed("PPO target_kl", "update", f"{LEARN}/learner.py Learner.optimise", {ITEM: 2}),
    # Two members in one batch: the figures of each, and which of the observations at the ends are whose.
    Allowed(ENSEMBLE, "update", f"{METRICS} members_metrics", {SOME: 1, DOWN: 4}),
    Allowed(ENSEMBLE, "update", MARKET_ROWS, {"_unique2": 2}),
    Allowed(ENSEMBLE, "update", f"{LEARN}/ppo_ensemble.py EnsemblePPO.learn", {DOWN: 2}),
    Allowed("ensemble flat", "update", f"{LEARN}/ppo_ensemble.py EnsemblePPO.final_values", {SOME: 2}),
    # A draw from TorchRL's buffer, one an update.
    Allowed(REPLAY, "update", f"{LEARN}/off_policy.py OffPolicyLearner.learn", {ITEM: 1}),
    Allowed(REPLAY, "update", f"{LEARN}/off_policy.py OffPolicyLearner._transitions", {SOME: 1}),
    Allowed(f"PPO curriculum|{DQN}|SAC order books", "update", f"{LEARN}/learner.py Learner.make_update", {SOME: 1}),
    Allowed("PPO curriculum", "update", SCHEDULE, {"bincount": 1, DOWN: 1}),
    Allowed("PPO curriculum", "update", f"{PROMOTION}.metrics", {ITEM: 1}),
    Allowed("PPO curriculum", "update", f"{PROMOTION}.update", {"repeat_interleave": 1, "unique_consecutive": 1}),
    Allowed(GRPO, "update", f"{CHECKS} checked_integers|{LEARN}/group_episodes.py episode_accounts", {ITEM: 1}),
    Allowed(GRPO, "update", f"{LEARN}/group_episodes.py audit", {ITEM: 11, MASK: 1}),
    Allowed("GRPO gigpo", "update", f"{LEARN}/group_credit.py step_advantages", {"_unique2": 1, MASK: 3}),
    Allowed("GRPO dapo", "update", f"{LEARN}/group_credit.py refilled", {SOME: 1}),
    # Agents side by side: whether all have ended, and the first row's account, day by day.
    Allowed(AGENTS, "play", f"({CHECKS}|vecenv/market/account.py|{LEARN}/evaluation.py) .*", {ITEM: None}),
    Allowed("agents stock_trading", "play", "tasks/stock_trading/agents.py days_to_trade", {ITEM: 3}),
    Allowed("agents full_autonomous", "play", f"{REFERENCES}|{HINDSIGHT}|tasks/tiers/agents.py .*", HOST),
    # A history is read once, before any day is drawn; a repeated day has none.
    Allowed("worldmodel rollout", "starts", "worldmodel/(data|network|sampling)/.*", HOST),
    Allowed("worldmodel rollout", "rollout", REPEATABLE, {UP: 1}),
    Allowed("worldmodel densities", "densities", "(worldmodel/(data|network|sampling)/|vecenv/market/bars).*", HOST),
    # Two steps and a validation: the order goes up, the loss comes down.
    Allowed("worldmodel training", "training", "worldmodel/training/fit.py _update", {ITEM: 2}),
    Allowed("worldmodel training", "training", "worldmodel/training/fit.py validate_network", {ITEM: 5}),
    Allowed("worldmodel training", "training", "worldmodel/sampling/training_market.py .*log_prob", {UP: 3}),
    Allowed("worldmodel training", "training", "worldmodel/network/.* masked_factor", {"_linalg_check_errors": 6}),
    # A checkpoint is read and its digest compared on the host; a market is checked series by series.
    Allowed("worldmodel tape", "tape", "(worldmodel/(network|sampling)|vecenv/market)/.*", HOST),
)


def faults(path: str, cpu: Trial, device: Trial, allowed: tuple[Allowed, ...] = ALLOWED) -> list[str]:
    """Say what is wrong with a path: results that differ, meetings that the list does not allow, and stale entries."""
    said = [f"{name} is not the same on the device" for name in differing(cpu, device)]
    rows = [(part, row) for row in allowed if re.fullmatch(row.paths, path) for part in row.part.split("|")]
    stale = {(part, row.place, what) for part, row in rows for what in row.meetings}
    for part, meetings in device.meetings.items():
        said += [f"{part}: {meeting}" for meeting in meetings if meeting.inside]
        found: Counter[tuple[str, str]] = Counter()
        for meeting, count in meetings.items():
            found[meeting.place, meeting.what] += count
        for (place, what), count in found.items():
            most: int | None = 0
            for row in (row for own, row in rows if own == part and re.fullmatch(row.place, place)):
                for kind in {what, ANY} & row.meetings.keys():
                    stale.discard((part, row.place, kind))
                    most = row.meetings[kind]
            if most not in (None, count):
                lines = sorted({str(meeting) for meeting in meetings if (meeting.place, meeting.what) == (place, what)})
                said.append(f"{part}: {count} meetings in {place}, {most} allowed: {', '.join(lines)}")
    return said + sorted(f"{part}: allowed and not met: {place} {what}" for part, place, what in stale)
