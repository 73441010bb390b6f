"""Texts, tools and records of the market's tasks: what is shown is what is, and answers are carried out."""

import pytest
import torch

from vecenv.registry import make_spoken, task_named
from vecenv.tasks.agent_market.agents import EXECUTORS
from vecenv.tasks.agent_market.records import MarketRecording
from vecenv.tasks.agent_market.text import Renderer, Shown
from vecenv.tasks.agent_market.tools import MarketTools
from vecenv.text.door import TextDoor
from vecenv.text.recording import write_report
from vecenv.text.records import read_lines
from vecenv.text.tool_calls import ToolCall

RECORDING = MarketRecording()
FEATURES = {
    **{"change_1": 0.0104, "change_8": -0.25, "change_64": -0.0001, "spread": 2.0, "imbalance": -0.004},
    **{"rsi_8": 61.4, "volatility_8": 1.234e-4, "volatility_32": 2e-5, "volume_surge": 1.26},
    **{"news_active": 1.0, "news_sentiment": -1.0, "news_magnitude": 37.0, "news_remaining": 12.0},
}
SHOWN = Shown(
    **{"step": 3, "steps": 20, "features": FEATURES, "doubled_mid": 200_001, "estimate": 100_020.4},
    ladder=(((99_999, 99_990, 0), (300, 1_200, 0)), ((100_001, 0, 0), (45, 0, 0))),
    own=((250, 99_990, 200, 1_000, 7), (0, 0, 0, 0, -1)),
    **{"shares": -150, "cash": 115_000_050, "profit": -0.001, "last_traded": (0, 150), "last_volume": 1_620},
    room=(400, 350),
)

TEXT = """\
Step 4 of 20
Order: sell 1,000
Mid 1,000.005 | spread 2 basis points | imbalance of the book +0.00
Candles of 10 s: +0.010% over 1, -0.250% over 8, +0.000% over 64 | RSI 61 | volatility 0.0123% (8), 0.002% (32) | \
volume 1.3x
News: bad, worth 0.37, 12 ticks left | fair value, a noisy estimate: 1,000.20
     bids     price       asks
           1,000.01         45
      300    999.99
    1,200    999.90             < yours: 200, 1,000 before it
Position: -150 shares | cash 1,150,000.50 | profit +0.00
Your orders: bid 200 at 999.90, and 50 more behind it
You may buy 400 more and sell 350 more.
In the last step you bought 0 and sold 150, of 1,620 traded."""


def test_a_row_is_written_as_it_is_with_exact_prices():
    assert Renderer(0.01, 10.0).text(SHOWN, ["Order: sell 1,000"]) == TEXT
    nobody = {"ladder": (((0,), (0,)), ((0,), (0,))), "own": ((0, 0, 0, 0, -1),) * 2}
    empty = SHOWN._replace(features=FEATURES | {"news_active": 0.0}, estimate=None, step=0, **nobody)
    text = Renderer(0.25, 1.0).text(empty, [])
    assert "News: none\n" in text and "fair value" not in text and "In the last step" not in text
    assert "There are no bids.\nThere are no asks." in text and "Your orders: none" in text
    assert "The episode has ended." in Renderer(0.25, 1.0).text(empty._replace(step=20), [])
    for tick, ticks, told in ((0.25, 7, "1.75"), (0.25, 7.5, "1.875"), (5.0, 300, "1,500.0"), (0.01, -5, "-0.05")):
        assert Renderer(tick, 1.0).price(ticks) == told


@pytest.mark.parametrize("task", ["agent_market", "execution", "market_making"])
def test_texts_show_the_state(task):
    """The ladder's numbers are those of the state, at every step of an episode in which orders wait."""
    env = make_spoken(task, 3, seed=3)
    door, marks = TextDoor(env), 0
    instructions = door.instructions(range(3))
    assert "20 steps of 30 seconds" in instructions[0] and "BID 0 cancels" in instructions[0]
    if task == "execution":
        signs = [text.split("\n")[1].split(" ")[0] for text in instructions]
        assert signs == ["Buy" if sign > 0 else "Sell" for sign in env.state.parent[:, 0].tolist()]
    while not bool(env.rows.done.all()):
        for row, text in enumerate(door.render(range(3))):
            state = env.state[row]
            ladder = text.split("asks\n")[1].split("\nPosition")[0].splitlines()
            found = []
            for line in (line for line in ladder if not line.startswith("There are no")):
                price, *size = line[9:].split("  < yours")[0].replace(",", "").split()
                found.append((round(float(price) * 100), int(line[:9].replace(",", "").strip() or size[0])))
            bids, asks = ([(int(p), int(q)) for p, q in state.ladder[:, side].T.tolist() if p > 0] for side in (0, 1))
            assert found == [*reversed(asks), *bids]
            assert f"Position: {int(state.shares):+,} shares" in text
            marks += text.count("< yours")
        orders, valid = door.parse(["BID 30 AT 999.99; ASK 30 AT 1000.20; BUY 20; SELL 10"] * 3, range(3))
        assert bool(valid.all())
        env.advance(orders)
    assert marks > 4


def test_options_shorten_what_is_shown_and_the_episode():
    env = make_spoken("agent_market", 2, seed=1, fair_value=False, depth=False)
    (told, _) = TextDoor(env).render([0, 1])
    assert "fair value" not in told and len(told.split("asks\n")[1].split("Position")[0].splitlines()) == 2
    assert called(env, ToolCall("feature", {"name": "deviation"}))[0].startswith("Error: there is no feature 'devia")
    assert make_spoken("execution", 1, max_ticks=90).scenario.longest == 3


@pytest.mark.nightly
def test_instructions_of_auctions_promise_no_waiting_orders():
    env = make_spoken("agent_market", 2, clearing="auction", num_noise=10)
    told, _ = TextDoor(env).instructions([0, 1])
    assert "Every 1 s all orders are cleared at one price, and none waits" in told
    assert "buy at the price of all" in told and "waits in the book" not in told and "BID" not in told


def called(env, *calls: ToolCall) -> list[str]:
    tools = TextDoor(env).text.tools(("all",))
    return [TextDoor(env).tool_results(tools, [call], [0])[0] for call in calls]


CALLS = (
    ("cost", {"side": "sell", "shares": 100}, "100 shares at 999.99 on average, 0.1 basis points from the mid"),
    ("cost", {"side": "Sell", "shares": 150}, "150 shares at 999.96 on average, 0.4 basis points from the mid"),
    ("cost", {"side": "buy", "shares": 40}, "40 shares at 1,000.01 on average, 0.1 basis points from the mid"),
    ("cost", {"side": "up", "shares": 1}, "Error: side must be buy or sell"),
    ("cost", {"side": "buy", "shares": 0}, "Error: shares must be at least 1"),
    ("cost", {"side": "buy"}, "Error: cost needs shares"),
    ("cost", {"side": "buy", "shares": True}, "Error: shares must be a whole number"),
    ("position", {"symbol": "A"}, "Error: position takes no 'symbol'; it takes none"),
    ("what_if", {}, "Error: there is no tool 'what_if'; there are feature, cost, position, calculator"),
    ("calculator", {"expression": "1/0"}, "Error: '1/0' has no value"),
    (
        "position",
        {},
        "+30 shares, cost 29,997.00, value at the mid 30,000.00, profit of them +3.00; 25 shares in bids, 0 in asks; "
        "40 bought and 10 sold since the start",
    ),
)


def test_tools_tell_the_state_and_faults():
    """Of a market whose first row holds 30 shares that have cost 29,997.00, and sees a known book."""
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
    for name, arguments, told in CALLS:
        assert called(env, ToolCall(name, arguments)) == [told]
    (told,) = called(env, ToolCall("cost", {"side": "buy", "shares": 41}))
    assert told.startswith("40 shares at 1,000.01 on average") and told.endswith("1 you see no orders")
    seen = env.scenario.unscaled(env.observations())[0].tolist()
    observed = dict(zip(env.scenario.feature_names, seen, strict=False))
    for name in ("macd", "rsi_8", "change_16", "deviation"):
        (told,) = called(env, ToolCall("feature", {"name": name}))
        assert told.endswith(f": {observed[name]:.6g}")
    env.rows = env.rows.replace(state=env.state.replace(ladder=torch.zeros_like(env.state.ladder)))
    assert called(env, ToolCall("cost", {"side": "buy", "shares": 3})) == ["that side of the book is empty"]
    assert MarketTools(env.scenario, ["market", "position"]).offered == ("feature", "cost", "position")
    with pytest.raises(ValueError, match="unknown tools levels; there are feature, cost, position, calculator"):
        MarketTools(env.scenario, ["levels"])


def test_texts_are_recorded_as_they_were_said(tmp_path):
    """Nonsense, reasoning and a text that is none: invalid holds, and numbers of every step."""
    env = make_spoken("agent_market", 1, seed=2, max_ticks=120)
    recorder = RECORDING.recorder(env, [0])
    with pytest.raises(ValueError, match="no step of the episode has been played"):
        write_report(tmp_path / "a.html", RECORDING, *recorder.episodes() * 2, "hold", env.scenario)
    for said in ("BUY 30", "buy everything", None, "<think>no</think> SELL 10 AT 1,003"):
        recorder.step(env.scenario.text.parse([said], env.state)[0], [said])
    (record,), info = recorder.episodes(), env.info()
    first, *_, last = record.turns
    assert [(turn.valid, turn.action) for turn in record.turns][1:3] == [(False, "buy everything"), (False, "")]
    assert (first.valid, first.bought, first.sold, first.shares, first.tick) == (True, 30, 0, 30, 30)
    assert first.orders == [{"kind": "BUY", "price": None, "shares": 30}]
    assert last.orders == [{"kind": "SELL_LIMIT", "price": 100_300, "shares": 10}]
    assert last.quotes == [[0, 0], [100_300, 10]] and last.ladder == env.state.ladder[0].transpose(0, 1).tolist()
    assert record.finished and record.parent == [0, 0] and record.grades == {"grade": float(env.grade()[0])}
    assert record.total_return == float(info["total_return"][0]) and last.equity == float(info["equity"][0])
    assert last.outcomes == {name: float(info[name][0]) for name in task_named("agent_market").outcomes}
    told = RECORDING.step_lines(first, env.scenario)
    assert told[0] == ("Bought 30 shares", "green") and told[-1][0].endswith(f"| reward {first.reward:+.3f}")
    for row, turn in zip(RECORDING.table_rows(record), record.turns, strict=True):
        for name in ("tick", "bought", "sold", "shares", "cash", "equity", "mid", "reward", "valid"):
            assert row[name] == getattr(turn, name)
    # A simulated market is not replaced, and lists are tuples again.
    with pytest.raises(ValueError, match="agent_market simulates its own market, so --market planted cannot be used"):
        task_named("agent_market").scenario_of(record, "planted")
    assert task_named("agent_market").scenario_of(RECORDING.read(record.to_json())).config == env.scenario.config
    (execution,) = RECORDING.record(make_spoken("execution", 1, max_ticks=60), EXECUTORS["twap"](), [0])
    assert execution.parent[0] in (-1, 1) and execution.parent[1] == 1_000
    (tmp_path / "a.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"a\.jsonl: not a text file"):
        read_lines(tmp_path / "a.jsonl")
