"""Tools of the market's tasks: results are those of the state, faults are told, nothing is changed."""

from __future__ import annotations

import pytest
import torch

from vecenv.registry import make_spoken
from vecenv.tasks.agent_market.tools import TOOLS, MarketTools
from vecenv.text.door import TextDoor
from vecenv.text.tool_calls import ToolCall
from vecenv.text.turns import TextRows, TextRules


def called(env, *calls: ToolCall, names=("all",)) -> list[str]:
    tools = TextDoor(env).text.tools(names)
    return [TextDoor(env).tool_results(tools, [call], [0])[0] for call in calls]


@pytest.fixture
def env():
    """A market whose first row holds 30 shares that have cost 29,997.00, and sees a known book."""
    env = make_spoken("agent_market", 2, seed=1)
    state = env.state
    ladder, own = torch.zeros_like(state.ladder), state.own.clone()
    ladder[0, 0, 0, :2], ladder[0, 1, 0, :2] = torch.tensor([99_999, 99_990]), torch.tensor([100, 50])
    ladder[0, 0, 1, :1], ladder[0, 1, 1, :1] = 100_001, 40
    own[0, 0, :] = torch.tensor([25, 0])
    fields = {
        "ladder": ladder,
        "own": own,
        "shares": torch.tensor([30, 0]),
        "cost": torch.tensor([2_999_700.0, 0.0], dtype=torch.float64),
        "traded": torch.tensor([[40, 10], [0, 0]]),
        "doubled_mid": torch.full_like(state.doubled_mid, 200_000),
    }
    env.rows = env.rows.replace(state=state.replace(**fields))
    return env


def test_costs_are_those_of_the_ladder(env):
    told = called(
        env,
        ToolCall("cost", {"side": "sell", "shares": 100}),
        ToolCall("cost", {"side": "Sell", "shares": 150}),
        ToolCall("cost", {"side": "buy", "shares": 41}),
    )
    assert told[0] == "100 shares at 999.99 on average, 0.1 basis points from the mid"
    assert told[1] == "150 shares at 999.96 on average, 0.4 basis points from the mid"
    assert told[2].startswith("40 shares at 1,000.01 on average, 0.1 basis") and told[2].endswith("1 you see no orders")


def test_the_position_is_told_with_what_it_has_cost(env):
    (told,) = called(env, ToolCall("position"))
    assert told == (
        "+30 shares, cost 29,997.00, value at the mid 30,000.00, profit of them +3.00; 25 shares in bids, 0 in asks; "
        "40 bought and 10 sold since the start"
    )


def test_features_are_those_that_are_observed(env):
    observed = dict(zip(env.scenario.feature_names, env.observations()[0].tolist(), strict=False))
    for name in ("macd", "rsi_8", "change_16", "deviation"):
        (told,) = called(env, ToolCall("feature", {"name": name}))
        assert told.endswith(f": {observed[name]:.6g}")
    hidden = make_spoken("agent_market", 1, seed=1, fair_value=False)
    (told,) = called(hidden, ToolCall("feature", {"name": "deviation"}))
    assert told.startswith("Error: there is no feature 'deviation'")


@pytest.mark.parametrize(
    ("call", "fault"),
    [
        (ToolCall("cost", {"side": "up", "shares": 1}), "side must be buy or sell"),
        (ToolCall("cost", {"side": "buy", "shares": 0}), "shares must be at least 1"),
        (ToolCall("cost", {"side": "buy"}), "cost needs shares"),
        (ToolCall("cost", {"side": "buy", "shares": True}), "shares must be a whole number"),
        (ToolCall("position", {"symbol": "A"}), "position takes no 'symbol'; it takes none"),
        (ToolCall("what_if", {}), "there is no tool 'what_if'; there are feature, cost, position, calculator"),
        (ToolCall("calculator", {"expression": "1/0"}), "'1/0' has no value"),
    ],
)
def test_faults_are_told(env, call, fault):
    assert called(env, call) == [f"Error: {fault}"]


def test_an_empty_side_costs_nothing_and_is_said(env):
    env.rows = env.rows.replace(state=env.state.replace(ladder=torch.zeros_like(env.state.ladder)))
    assert called(env, ToolCall("cost", {"side": "buy", "shares": 3})) == ["that side of the book is empty"]


def test_tools_are_called_before_an_answer():
    """Three calls and an answer: the market moves by the answer alone, and the instructions name every tool."""
    rows = TextRows(make_spoken("execution", 1, seed=2), TextRules(tools=("all",)))
    (instructions,) = rows.instructions([0])
    assert all(f"  {name}: " in instructions for name in TOOLS) and "at most 3 a step" in instructions
    rows.begin([0])
    for call, told in (
        ('{"name": "calculator", "arguments": {"expression": "1000 / 20"}}', "50"),
        ('<tool_call>{"name": "position"}</tool_call>', "+0 shares"),
        ('{"name": "feature", "arguments": {"name": "mid"}}', "mid, middle of best bid and ask: "),
    ):
        (turn,) = rows.answer([0], [call])
        assert turn.shown.startswith(told) and int(rows.env.state.tick[0]) == 0
    (turn,) = rows.answer([0], ["HOLD"])
    assert int(rows.env.state.tick[0]) == 30 and turn.valid


def test_families_are_chosen_by_name():
    scenario = make_spoken("execution", 1).scenario
    assert MarketTools(scenario, ["market", "position"]).offered == ("feature", "cost", "position")
    with pytest.raises(ValueError, match="unknown tools levels; there are feature, cost, position, calculator"):
        MarketTools(scenario, ["levels"])
