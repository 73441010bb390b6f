"""Where host and device may meet: the whole list, by path and part, and how a path is held to it."""

from __future__ import annotations

import re
from collections import Counter
from typing import NamedTuple

from tests.device.trial import Trial, differing

ITEM = "_local_scalar_dense"
"""What ``.item()``, ``float()``, ``int()``, ``bool()`` and ``if`` of a tensor are."""


class Allowed(NamedTuple):
    """Meetings of one kind at one place.

    Attributes:
        paths: regular expression of the paths that have them.
        part: of the path.
        place: file and function.
        what: as in `Meeting`.
        count: how many; None where it grows with the market.
    """

    paths: str
    part: str
    place: str
    what: str
    count: int | None = 1


TIER = r"(single_stock|single_stock_costs|multi_stock_3|portfolio|full_autonomous|curriculum) .*"
TASK = f"(stock_trading|signals|news_signals) .*|{TIER}"
RATING, RATING_TEXT = "news_signals .*", "tasks/signals/rating/text/rating_text.py RatingText"
GRADED = "portfolio aligned|portfolio potential"
LEARNER = "(PPO|CPPO|A2C|DQN|GRPO|exact) .*|DDPG|TD3|SAC.*"
GRPO, EXACT, AGENTS = "GRPO .*", "exact .*", "agents .*"
SAMPLING, DQN = "(PPO|CPPO|A2C|DQN|GRPO) .*|DDPG|TD3|SAC.*", "DQN .*"
ON_BARS = "(PPO|CPPO(?! risk)|A2C|GRPO|exact) .*|DDPG|TD3|SAC"
ON_POLICY, REPLAY = "(PPO|CPPO|A2C) .*", "DQN .*|DDPG|TD3|SAC.*"
RESET = "tests/device/task_paths.py task_path"
PARTIAL = "tests/device/task_paths.py _rows"
NUMBERS, INTEGERS = "vecenv/core/tensor_checks.py row_numbers", "vecenv/core/tensor_checks.py checked_integers"
DISTINCT = "vecenv/core/tensor_checks.py distinct"
METRICS = "vecenv/learn/episode_metrics.py"
ENSEMBLE, MEMBERS = "ensemble .*", "vecenv/learn/ppo_ensemble.py EnsemblePPO"
AUDIT = "vecenv/learn/group_episodes.py audit"
HINDSIGHT, REFERENCES = "vecenv/market/hindsight.py _chosen", "tasks/tiers/grading.py references"
TEXT, TOOLS, TURNS = (
    "tasks/tiers/text/rows.py TierText",
    "tasks/tiers/tools.py TierTools",
    "vecenv/text/turns.py TextRows",
)
MARKET, MARKET_TEXT = "market (?!text).*", "tasks/agent_market/text/market_text.py"
CORRELATION = "worldmodel/data/correlation.py CorrelationState.correlation"
DEFINITE = "worldmodel/data/correlation.py positive_definite"
CHECKPOINT, TAPE = "worldmodel/network/checkpoint.py load_network", "vecenv/market/tape.py MarketTape.from_bars"
FACTOR = "worldmodel/network/return_chain.py masked_factor"
TRAINING = "worldmodel/training/fit.py validate_network"

ALLOWED = (
    # TorchRL's reset looks whether any row is marked, and selects by masks.
    Allowed(TASK, "reset", RESET, ITEM, 3),
    Allowed(TASK, "partial reset", PARTIAL, ITEM, 7),
    Allowed(TASK, "partial reset", PARTIAL, "mask", 3),
    Allowed(TASK, "partial reset", PARTIAL, "to device", 4),
    # What a caller names by number is looked at before it is used.
    Allowed(TASK, "groups", INTEGERS, ITEM),
    Allowed(TASK, "copy rows", NUMBERS, ITEM, 4),
    Allowed(TASK, "begin rows", NUMBERS, ITEM, 2),
    Allowed(TASK, "copy rows|begin rows", DISTINCT, "_unique2"),
    Allowed(TASK, "begin rows", INTEGERS, ITEM, 2),
    Allowed(f"{TASK}|{LEARNER}|{ENSEMBLE}", "save and load", INTEGERS, ITEM, 3),
    Allowed(TASK, "begin rows", NUMBERS, "to device"),
    # Hindsight of the whole market, computed once: at the first grade, or before where the reward needs it.
    Allowed(f"(?!{GRADED}|single_stock random)({TIER})", "first grade", REFERENCES, "to device", None),
    Allowed(f"(?!{GRADED})({TIER})", "first grade", HINDSIGHT, "to device", None),
    # A warm-up: which rows are to be started, at every step of a rollout.
    Allowed("donated .* 3", "restarting rollout", "vecenv/core/row_buffers.py Restarts.prepare", "nonzero", 12),
    Allowed("donated .* 3", "restart", "vecenv/core/episode_rows.py EpisodeRows.restart", "nonzero"),
    # Text is written and read on the host: one copy of what is shown, one of what was parsed.
    Allowed(TIER, "text", f"{TEXT}.render", "to host"),
    Allowed(TIER, "text", f"{TEXT}.parse", "to host"),
    Allowed(TIER, "text", f"{TEXT}.parse", "to device", 2),
    Allowed(TIER, "text", f"{TEXT}.instructions", "to host"),
    Allowed(f"{TIER}|{RATING}", "text", NUMBERS, ITEM, 6),
    Allowed(f"{TIER}|{RATING}", "text", NUMBERS, "to device", 3),
    Allowed(RATING, "text", f"{RATING_TEXT}.render", "to host", 5),
    Allowed(RATING, "text", f"{RATING_TEXT}.parse", "to device", 2),
    Allowed("single_stock random", "text", f"{TEXT}.symbols", "to host", 3),
    Allowed(MARKET, "restarting rollout", "vecenv/core/row_buffers.py Restarts.prepare", "nonzero", 6),
    Allowed("market text", "text", f"{MARKET_TEXT} _on_host", "to host"),
    Allowed("market text", "text", f"{MARKET_TEXT} MarketText.grammar", "to host"),
    Allowed("market text", "text", f"{MARKET_TEXT} MarketText.parse", "to device", 2),
    Allowed("market text", "text", f"{MARKET_TEXT} ExecutionText.task_lines", "to host", 4),
    Allowed("market text", "text", f"{MARKET_TEXT} ExecutionText.goals", "to host"),
    Allowed("market text", "text", NUMBERS, ITEM, 6),
    Allowed("market text", "text", NUMBERS, "to device", 3),
    # An update of a learner: which steps ended an episode, and the numbers of the log.
    Allowed(LEARNER, "update", f"{METRICS} rollout_metrics", "nonzero"),
    Allowed(SAMPLING, "update", f"{METRICS} episode_metrics", ITEM),
    Allowed(ON_BARS, "update", "vecenv/market/account.py MarketAccount.market_rows", "_unique2"),
    Allowed(f"C?PPO (?!curriculum|risk).*|A2C .*|{REPLAY}|{GRPO}|{EXACT}", "update", f"{METRICS} outcomes", ITEM, 2),
    Allowed("CPPO risk", "update", f"{METRICS} outcomes", ITEM),
    Allowed(SAMPLING, "update", "vecenv/learn/learner.py Learner.minimise", "to host"),
    Allowed(EXACT, "update", "vecenv/learn/exact.py Exact.make_update", "to host"),
    Allowed(ON_BARS, "save and load", "vecenv/market/tape.py MarketTape.fingerprint", "to host", None),
    Allowed("C?PPO signals", "save and load", "vecenv/market/panels.py Panels.digest", "to host", None),
    Allowed(ON_POLICY, "update", "vecenv/learn/on_policy.py OnPolicyLearner.advantages", "nonzero"),
    Allowed(ON_POLICY, "update", "vecenv/learn/on_policy.py OnPolicyLearner.learn", ITEM),
    Allowed("CPPO .*", "update", "vecenv/learn/cppo.py _TailsPenalised.told_metrics", "to host"),
    Allowed("PPO target_kl", "update", "vecenv/learn/learner.py Learner.optimise", ITEM, 2),
    # Two members in one batch: the figures of each, and which of the observations at the ends are whose.
    Allowed(ENSEMBLE, "update", f"{METRICS} members_metrics", "nonzero"),
    Allowed(ENSEMBLE, "update", f"{METRICS} members_metrics", "to host", 4),
    Allowed(ENSEMBLE, "update", "vecenv/market/account.py MarketAccount.market_rows", "_unique2", 2),
    Allowed(ENSEMBLE, "update", f"{MEMBERS}.learn", "to host", 2),
    Allowed("ensemble flat", "update", f"{MEMBERS}.final_values", "nonzero", 2),
    Allowed("ensemble flat", "update", "vecenv/learn/on_policy.py OnPolicyLearner.advantages", "nonzero"),
    Allowed(ENSEMBLE, "save and load", "vecenv/market/tape.py MarketTape.fingerprint", "to host", None),
    # A draw from TorchRL's buffer, one an update.
    Allowed(REPLAY, "update", "vecenv/learn/off_policy.py OffPolicyLearner.learn", ITEM),
    Allowed(REPLAY, "update", "vecenv/learn/off_policy.py OffPolicyLearner._transitions", "nonzero"),
    Allowed(
        f"PPO curriculum|{DQN}|SAC order books", "update", "vecenv/learn/learner.py Learner.make_update", "nonzero"
    ),
    Allowed("PPO curriculum", "update", "tasks/tiers/curriculum.py CurriculumSchedule.update", "bincount"),
    Allowed("PPO curriculum", "update", "tasks/tiers/curriculum.py CurriculumSchedule.update", "to host"),
    Allowed("PPO curriculum", "update", "tasks/tiers/curriculum_schedulers.py Promotion.metrics", ITEM),
    Allowed("PPO curriculum", "update", "tasks/tiers/curriculum_schedulers.py Promotion.update", "repeat_interleave"),
    Allowed("PPO curriculum", "update", "tasks/tiers/curriculum_schedulers.py Promotion.update", "unique_consecutive"),
    Allowed(GRPO, "update", INTEGERS, ITEM),
    Allowed(GRPO, "update", "vecenv/learn/group_episodes.py episode_accounts", ITEM),
    Allowed(GRPO, "update", AUDIT, ITEM, 11),
    Allowed(GRPO, "update", AUDIT, "mask"),
    Allowed("GRPO gigpo", "update", "vecenv/learn/group_credit.py step_advantages", "_unique2"),
    Allowed("GRPO gigpo", "update", "vecenv/learn/group_credit.py step_advantages", "mask", 3),
    Allowed("GRPO dapo", "update", "vecenv/learn/group_credit.py refilled", "nonzero"),
    # Agents side by side: whether all have ended, and the first row's account, day by day.
    Allowed(AGENTS, "play", INTEGERS, ITEM, None),
    Allowed(AGENTS, "play", "vecenv/market/account.py MarketAccount.view", ITEM, None),
    Allowed(AGENTS, "play", "vecenv/learn/evaluation.py play", ITEM, None),
    Allowed("agents stock_trading", "play", "tasks/stock_trading/agents.py days_to_trade", ITEM, 3),
    Allowed("agents full_autonomous", "play", REFERENCES, "to device", None),
    Allowed("agents full_autonomous", "play", HINDSIGHT, "to device", None),
    Allowed("agents full_autonomous", "play", "tasks/tiers/agents.py Invalid.act", "to device", 4),
    Allowed("agents full_autonomous", "play", "tasks/tiers/agents.py Oracle.act", "equal", 3),
    Allowed("agents full_autonomous", "play", "tasks/tiers/agents.py hindsight_plan", "nonzero"),
    Allowed("agents full_autonomous", "play", "tasks/tiers/agents.py hindsight_plan", "to device"),
    # Agents that read and write text.
    Allowed("text turns", "begin", REFERENCES, "to device", None),
    Allowed("text turns", "begin", HINDSIGHT, "to device", None),
    Allowed("text turns", "begin", f"{TEXT}.instructions", "to host"),
    Allowed("text turns", "begin|a day", f"{TEXT}.render", "to host"),
    Allowed("text turns", "begin|a day", f"{TURNS}._told", "to device"),
    Allowed("text turns", "begin|a day", f"{TURNS}._told", "to host", 3),
    Allowed("text turns", "begin", NUMBERS, ITEM, 4),
    Allowed("text turns", "begin", NUMBERS, "to device", 2),
    Allowed("text turns", "a tool", f"{TOOLS}.rows", "to host", 3),
    Allowed("text turns", "a tool", NUMBERS, ITEM, 2),
    Allowed("text turns", "a tool", NUMBERS, "to device"),
    Allowed("text turns", "a day", f"{TEXT}.parse", "to host"),
    Allowed("text turns", "a day", f"{TEXT}.parse", "to device", 2),
    Allowed("text turns", "a day", f"{TURNS}._step", "to device"),
    Allowed("text turns", "a day", f"{TURNS}._step", "to host", 6),
    Allowed("text turns", "a day", NUMBERS, ITEM, 6),
    Allowed("text turns", "a day", NUMBERS, "to device", 3),
    Allowed("text tools", "tools", f"{TOOLS}._closes", "to host", 2),
    Allowed("text tools", "tools", f"{TOOLS}._indicator", "to host"),
    Allowed("text tools", "tools", f"{TOOLS}._position", ITEM),
    Allowed("text tools", "tools", f"{TOOLS}.rows", "to host", 3),
    Allowed("text tools", "tools", f"{TOOLS}._what_if", "to device"),
    Allowed("text tools", "tools", f"{TOOLS}._what_if", "to host", 5),
    Allowed("text tools", "tools", f"{TOOLS}.results", "to device"),
    Allowed("text tools", "tools", NUMBERS, ITEM, 2),
    Allowed("text tools", "tools", NUMBERS, "to device"),
    Allowed("text tools", "tools", "vecenv/text/door.py TextDoor.tool_results", "to device"),
    # A history is read once, before any day is drawn; a repeated day has none.
    Allowed("worldmodel rollout", "starts", CORRELATION, ITEM, 8),
    Allowed("worldmodel rollout", "starts", CORRELATION, "mask", 8),
    Allowed("worldmodel rollout", "starts", DEFINITE, ITEM, 4),
    Allowed("worldmodel rollout", "starts", FACTOR, "_linalg_check_errors", 2),
    Allowed("worldmodel rollout", "starts", "worldmodel/sampling/neural.py NeuralMarket.starts", "to device"),
    Allowed("worldmodel rollout", "rollout", "worldmodel/network/transformer.py Cache.repeatable", "to device"),
    Allowed("worldmodel densities", "densities", CORRELATION, ITEM, 64),
    Allowed("worldmodel densities", "densities", CORRELATION, "mask", 64),
    Allowed("worldmodel densities", "densities", DEFINITE, ITEM, 32),
    Allowed("worldmodel densities", "densities", FACTOR, "_linalg_check_errors", 4),
    Allowed("worldmodel densities", "densities", "worldmodel/sampling/neural.py NeuralMarket._densities", "to host", 6),
    Allowed("worldmodel densities", "densities", "vecenv/market/bars.py Bars.to", "to device", 2),
    # Two steps and a validation: the order goes up, the loss comes down.
    Allowed("worldmodel training", "training", "worldmodel/training/fit.py _update", ITEM, 2),
    Allowed("worldmodel training", "training", TRAINING, ITEM, 5),
    Allowed(
        "worldmodel training",
        "training",
        "worldmodel/sampling/training_market.py TrainingMarket.log_prob",
        "to device",
        3,
    ),
    Allowed("worldmodel training", "training", FACTOR, "_linalg_check_errors", 6),
    # A checkpoint is read and its digest compared on the host, then goes up tensor by tensor.
    Allowed("worldmodel tape", "tape", CHECKPOINT, "to device", None),
    Allowed("worldmodel tape", "tape", CHECKPOINT, "to host", None),
    Allowed("worldmodel tape", "tape", "worldmodel/network/checkpoint.py _digest", "to host", None),
    Allowed("worldmodel tape", "tape", "worldmodel/sampling/generator.py _nothing", "to device"),
    Allowed("worldmodel tape", "tape", "worldmodel/sampling/neural.py _refuse_unfit", "to host"),
    Allowed("worldmodel tape", "tape", FACTOR, "_linalg_check_errors", 2),
    Allowed("worldmodel tape", "tape", "worldmodel/network/transformer.py Cache.repeatable", "to device"),
    # A market is checked for what a tick or float32 would distort, series by series.
    Allowed("worldmodel tape", "tape", TAPE, ITEM, 3),
    Allowed("worldmodel tape", "tape", "vecenv/market/ticks.py lowest_price", ITEM),
    Allowed("worldmodel tape", "tape", "vecenv/market/ticks.py refuse_overflow", "nonzero", None),
    Allowed("worldmodel tape", "tape", "vecenv/market/ticks.py whole_ticks", "nonzero", 2),
    Allowed("worldmodel tape", "tape", "vecenv/market/bar_series.py refuse_partial_bars", "nonzero"),
)


def faults(path: str, cpu: Trial, device: Trial, allowed: tuple[Allowed, ...] = ALLOWED) -> list[str]:
    """Say what is wrong with a path: results that differ, meetings that the list does not allow, and stale entries."""
    said = [f"{name} is not the same on the device" for name in differing(cpu, device)]
    rows = [row for row in allowed if re.fullmatch(row.paths, path)]
    open_rows = {(part, row) for row in rows for part in row.part.split("|")}
    for part, meetings in device.meetings.items():
        found: Counter[tuple[str, str]] = Counter()
        for meeting, count in meetings.items():
            found[meeting.place, meeting.what] += count
            if meeting.inside:
                said.append(f"{part}: {meeting}")
        for (place, what), count in found.items():
            row = next((row for own, row in open_rows if (own, row.place, row.what) == (part, place, what)), None)
            open_rows.discard((part, row))
            if row is None or row.count not in (None, count):
                lines = sorted({str(meeting) for meeting in meetings if (meeting.place, meeting.what) == (place, what)})
                least = "none" if row is None else f"{row.count}"
                said.append(f"{part}: {count} meetings in {place}, {least} allowed: {', '.join(lines)}")
    stale = [f"{part}: allowed and not met: {row.place} {row.what}" for part, row in open_rows]
    return said + sorted(stale)
