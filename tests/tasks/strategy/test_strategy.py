"""Writing strategies: conversations, common paths, what is never shown, and what is told."""

from dataclasses import replace
from random import Random

import pytest
import torch

from vecenv import Dialogue, Episode, make_interaction
from vecenv.finance.programs import market_features
from vecenv.market.tape import MarketTape
from vecenv.programs.evaluation import Evaluator
from vecenv.programs.parsing import parsed
from vecenv.tasks.stock_trading.programs import PROGRAMS
from vecenv.tasks.strategy.agents import BEST, best_rule, written
from vecenv.tasks.strategy.config import StrategyConfig
from vecenv.tasks.strategy.figures import figures
from vecenv.tasks.strategy.scene import PARTS, StrategyWriting, shown_and_held_out
from vecenv.tasks.strategy.task import STRATEGY
from vecenv.tasks.strategy.text import read_program
from vecenv.testing import check_interaction
from vecenv.text.transcripts import RecordedDialogue, replayed_conversation

SMALL = {"num_paths": 16, "num_days": 64, "days": 4, "paths": 4, "embargo": 2, "features": ("daily_change",)}
SMALL |= {"symbols": ("A", "B"), "tries": 2}
ONE, OTHER = Episode(3, 1), Episode(3, 2)


def world_of(rows=2, **changes):
    return make_interaction(STRATEGY, rows, **{**SMALL, **changes})


def said(world, *messages, episode=ONE):
    """Return the turns of messages of one row."""
    dialogue = Dialogue(world)
    dialogue.begin([0], [episode])
    return [dialogue.answer([0], [message])[0] for message in messages]


@pytest.mark.assembly
def test_it_conforms():
    check_interaction(STRATEGY, **SMALL)


@pytest.mark.parametrize(
    ("message", "text", "final"),
    [
        ("weight = 1", "weight = 1", False),
        ("Let me see.\n```python\na = 2\nweight = a\n```\nDone.", "a = 2\nweight = a", False),
        ("```\nweight = 1\n```\nNo:\n```\nweight = 2\n```", "weight = 2", False),
        ("So <final_code>\nweight = 1\n</final_code>", "weight = 1", True),
        ("<final_code>```\nweight = 3\n```</final_code>", "weight = 3", True),
        ("<final_code>```\nweight = 4</final_code>", "weight = 4", True),
        ("```weight = 1", "```weight = 1", False),
    ],
)
def test_the_program_of_a_message(message, text, final):
    assert read_program(message) == (text, final, "")
    assert read_program("<final_code>weight = 4").fault == "<final_code> is not closed by </final_code>"


def test_the_parts_share_no_path_and_no_day_that_is_held_out():
    config = StrategyConfig(**SMALL)
    tape, met = config.tape(), []
    for part in PARTS:
        shown, held_out = shown_and_held_out(tape, replace(config, part=part))
        assert shown.tape.path_span == (0, 4) and shown.tape.dates[0] == tape.dates[0]
        first, last = held_out.tape.dates[held_out.first], held_out.tape.dates[held_out.last + config.days]
        paths, days = (spread for spread in shown.drawn("a name", 4))
        assert sorted(paths.tolist()) == [0, 1, 2, 3] and bool(((days >= shown.first) & (days <= shown.last)).all())
        met += [(shown.tape.dates[shown.last + config.days], (0, 4))] * (not met) + [(first, held_out.tape.path_span)]
        met.append((last, held_out.tape.path_span))
    dates, spans = zip(*met, strict=True)
    assert list(dates) == sorted(set(dates)) and dates[-1] == tape.dates[-1]
    assert spans[1::2] == ((4, 8), (8, 12), (12, 16))
    # Of one history the years alone differ.
    alone = shown_and_held_out(tape.paths(0, 1), config)
    assert [years.tape.num_paths for years in alone] == [1, 1]
    _, starts = alone[0].drawn("a name", 4000)
    assert starts.unique().tolist() == list(range(alone[0].first, alone[0].last + 1))


def test_members_of_a_group_meet_the_same_paths_alone_or_together():
    world, texts = world_of(4), ["weight = 0.2", "weight = 0.3 if daily_change > 0 else 0"]
    dialogue = Dialogue(world)
    dialogue.begin(range(4), [ONE, ONE, OTHER, ONE])
    first, second, other, again = dialogue.answer(range(4), [*texts, texts[0], texts[0]])
    assert first.outcomes == again.outcomes and first.shown == again.shown != second.shown
    assert first.outcomes["shown"] != other.outcomes["shown"]
    assert said(world_of(1), texts[1])[0] == second


def test_the_last_valid_program_counts_and_what_is_wrong_is_told():
    world = world_of()
    good, bad = said(world, "weight = 0.5", "a = 1\nweight = clse")
    assert bad.fault == "line 2, column 10: unknown name clse (did you mean close?)" and bad.terminated
    assert bad.grade == bad.outcomes["held_out"] and bad.reward == bad.grade and "never shown" in bad.shown
    assert bad.outcomes["shown"] == good.outcomes["shown"] and bad.outcomes["tries"] == 2
    assert bad.outcomes["overfit_gap"] == bad.outcomes["shown"] - bad.outcomes["held_out"] != 0
    nothing = said(world, "weight = close", "weight = gain")[-1]
    assert (nothing.reward, nothing.grade) == (0.0, 0.0) and "No valid program was written" in nothing.shown
    hinted = said(world, "weight = 0.5 if max(close, 20) > 20 else 0")[0].shown
    assert "\nNote: max(close, 20) is the larger one of two numbers; of the last 20 bars" in hinted
    (ended,) = said(world, "<final_code>weight = 0.5</final_code>")
    assert ended.terminated and ended.grade == bad.grade and "left" not in ended.shown
    assert "grade" in good.shown and "1 try left" in good.shown and not good.done


def test_lines_have_a_price_in_the_reward_alone():
    dialogue = Dialogue(world := world_of(price_per_line=0.01, most_lines=2, tries=1))
    dialogue.begin([0], [ONE])
    (turn,) = world.answer([0], ["a = 0.5\nweight = a"])
    assert turn.reward == turn.outcomes["shown"] - 0.02 and turn.grade == turn.outcomes["held_out"]
    assert "Each line costs 0.01" in world.instructions([0])[0]
    assert said(world, "a = 1\nb = 1\nweight = 1")[0].fault.endswith("at most 2 lines here, this one 3")


def test_the_instructions_name_all_that_there_is():
    told = world_of().instructions([0])[0]
    assert all(name in told for name in [*world_of().vocabulary.features, "at most 64", "Trading is free", "2 tries"])
    for action in ("weights", "tilt", "shares"):
        world = world_of(action=action)
        assert all(world.read(text) for text in (*world.examples(), world.random_answer(Random(1))))


def test_a_market_without_room_is_refused():
    with pytest.raises(ValueError, match=r"64 days, 1 of them warm-up, have no room .* at least 85 are needed"):
        world_of(days=20, embargo=0)
    with pytest.raises(ValueError, match="commission"):
        StrategyConfig(commission=0.6, slippage=0.5)
    with pytest.raises(ValueError, match=r"^paths must be"):
        StrategyConfig(paths=0)


@pytest.mark.parametrize("kind", list(BEST))
def test_the_written_best_rules_hold_what_is_best(kind):
    config = StrategyConfig(**SMALL | {"planted_kind": kind, "symbols": ("A", "B", "C")})
    tape = config.tape()
    if kind == "signal":
        tape = MarketTape.from_bars(*_signal(config))
    words = PROGRAMS.vocabulary(replace(config.rules(), features=tape.feature_names))
    world = StrategyWriting.__new__(StrategyWriting)
    world.symbols, world.config = tape.symbols, config
    evaluator = Evaluator([parsed(written(world, BEST[kind]), words)])
    names = {name for name, feature in words.features.items() if not feature.account}
    wanted = evaluator.over(market_features(tape, sorted(names)))[0, 0, :, 11:]
    found = wanted / wanted.sum(-1, keepdim=True).clamp(min=1)
    known = tape.best_weights[:, 11:]
    assert float((found - known).abs().gt(1e-6).double().mean()) < 0.002 and known.any()


def _signal(config):
    from vecenv.market.planted import planted_bars

    return planted_bars(4, 64, ("A", "B", "C"), kind="signal"), ("signal",)


def test_baselines_write_programs_for_every_action():
    for action in ("weights", "tilt", "shares"):
        world, ids = world_of(action=action, paths=2), [0, 1]
        world.begin(ids, [ONE, OTHER])
        for name in ("buy_and_hold", "rsi", "crossover", "random_programs"):
            texts = STRATEGY.agents[name]().answer(world, ids, ["", ""])
            assert all(world.read(read_program(text).program) for text in texts)
    (hold,) = said(world_of(), *STRATEGY.agents["buy_and_hold"]().answer(world, [0], [""])[:0], "weight = 0")
    assert hold.outcomes["shown"] != 0.5
    assert best_rule(world_of(commission=0.001)) is None and best_rule(world_of(planted_kind="volatility")) is None


def test_buying_and_holding_is_the_middle_of_the_grade():
    world = world_of()
    world.begin([0], [ONE])
    (turn,) = world.answer([0], STRATEGY.agents["buy_and_hold"]().answer(world, [0], [""]))
    assert turn.outcomes["shown"] == pytest.approx(0.5, abs=1e-4)
    assert turn.terminated and turn.outcomes["standard_error"] < 1e-4


def test_records_replay_and_are_drawn():
    world = world_of()
    dialogue = RecordedDialogue(world)
    dialogue.begin([0, 1], [ONE, OTHER])
    dialogue.answer([0, 1], ["weight = 0.5", "nothing"])
    dialogue.answer([0, 1], ["weight = 0.1", "nothing"])
    records = dialogue.records
    assert all(record.difference(replayed_conversation(record, world_of(1))) is None for record in records)
    drawn = STRATEGY.domain.talk_pictures({"one": records[:1], "none": records[1:]}) | figures(world, {}, 0)
    assert list(drawn) == ["grade_by_try", "overfit_gap", "standard_error"]
    line = drawn["grade_by_try"].axes[0].containers[0].lines[0]
    shown = [turn.outcomes["shown"] for turn in records[0].turns[1:]]
    assert line.get_ydata().tolist() == pytest.approx(shown) and len(drawn["grade_by_try"].axes[0].containers) == 2
    (points,) = drawn["overfit_gap"].axes[0].collections
    last = records[0].turns[-1].outcomes
    assert points.get_offsets().tolist() == [pytest.approx([last["shown"], last["held_out"]])]
    assert torch.tensor(drawn["standard_error"].axes[0].lines[1].get_ydata()).gt(0).all()
