"""Texts of the market's tasks: what is shown is what is, and answers are carried out."""

from __future__ import annotations

import pytest

from vecenv.registry import make_spoken
from vecenv.tasks.agent_market.text.render import Renderer, Shown
from vecenv.text.door import TextDoor
from vecenv.text.turns import TextRows, TextRules

TASKS = ("agent_market", "execution", "market_making")
ALL = pytest.mark.parametrize("task", TASKS)

FEATURES = {
    **{"change_1": 0.0104, "change_8": -0.25, "change_64": -0.0001, "spread": 2.0, "imbalance": -0.004},
    **{"rsi_8": 61.4, "volatility_8": 1.234e-4, "volatility_32": 2e-5, "volume_surge": 1.26},
    **{"news_active": 1.0, "news_sentiment": -1.0, "news_magnitude": 37.0, "news_remaining": 12.0},
}
SHOWN = Shown(
    step=3,
    steps=20,
    features=FEATURES,
    ladder=(((99_999, 99_990, 0), (300, 1_200, 0)), ((100_001, 0, 0), (45, 0, 0))),
    own=((250, 99_990, 200, 1_000, 7), (0, 0, 0, 0, -1)),
    doubled_mid=200_001,
    estimate=100_020.4,
    shares=-150,
    cash=115_000_050,
    profit=-0.001,
    last_traded=(0, 150),
    last_volume=1_620,
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


def test_a_row_is_written_as_it_is():
    assert Renderer(0.01, 10.0).text(SHOWN, ["Order: sell 1,000"]) == TEXT


def test_an_empty_book_and_no_news_are_said():
    empty = SHOWN._replace(
        ladder=(((0,), (0,)), ((0,), (0,))),
        own=((0, 0, 0, 0, -1),) * 2,
        features=FEATURES | {"news_active": 0.0},
        estimate=None,
        step=0,
    )
    text = Renderer(0.25, 1.0).text(empty, [])
    assert "News: none\n" in text and "fair value" not in text and "In the last step" not in text
    assert "There are no bids.\nThere are no asks." in text and "Your orders: none" in text
    assert "The episode has ended." in Renderer(0.25, 1.0).text(empty._replace(step=20), [])


@pytest.mark.parametrize(
    ("tick", "ticks", "told"),
    [
        (0.01, 100_000.5, "1,000.005"),
        (0.25, 7, "1.75"),
        (0.25, 7.5, "1.875"),
        (5.0, 300, "1,500.0"),
        (0.01, -5, "-0.05"),
    ],
)
def test_prices_are_exact(tick, ticks, told):
    assert Renderer(tick, 1.0).price(ticks) == told


@ALL
def test_texts_show_the_state(task):
    """The ladder's numbers are those of the state, at every step of an episode in which orders wait."""
    env = make_spoken(task, 4, seed=3)
    door, marks = TextDoor(env), 0
    answer = "BID 30 AT 999.99; ASK 30 AT 1000.20; BUY 20; SELL 10"
    while not bool(env.rows.done.all()):
        for row, text in enumerate(door.render(range(4))):
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
        orders, valid = door.parse([answer] * 4, range(4))
        assert bool(valid.all())
        env.advance(orders)
    assert marks > 4


def test_without_depth_and_fair_value_there_is_one_level_and_no_estimate():
    env = make_spoken("agent_market", 2, seed=1, fair_value=False, depth=False)
    (told, _) = TextDoor(env).render([0, 1])
    assert "fair value" not in told and len(told.split("asks\n")[1].split("Position")[0].splitlines()) == 2


@pytest.mark.nightly
def test_instructions_of_auctions_promise_no_waiting_orders():
    env = make_spoken("agent_market", 2, clearing="auction", num_noise=10)
    told, _ = TextDoor(env).instructions([0, 1])
    assert "Every 1 s all orders are cleared at one price, and none waits" in told
    assert "buy at the price of all" in told and "waits in the book" not in told and "BID" not in told


@ALL
def test_instructions_name_goal_and_grammar(task):
    env = make_spoken(task, 2, seed=1)
    (told, _) = TextDoor(env).instructions([0, 1])
    assert "20 steps of 30 seconds" in told and "BID 0 cancels" in told
    if task == "execution":
        signs = [text.split("\n")[1].split(" ")[0] for text in TextDoor(env).instructions([0, 1])]
        assert signs == ["Buy" if sign > 0 else "Sell" for sign in env.state.parent[:, 0].tolist()]


@ALL
def test_an_episode_of_answers(task):
    """Orders trade, nonsense is an invalid hold, and the grade comes at the end."""
    rows = TextRows(make_spoken(task, 2, seed=5), TextRules(format_penalty=-0.5))
    rows.begin([0, 1])
    turns = rows.answer([0, 1], ["BUY 40; SELL 40", "give me money"])
    assert [turn.valid for turn in turns] == [True, False] and turns[1].reward <= -0.5
    assert [turn.acted for turn in turns] == [True, False]
    assert int(rows.env.state.traded[0].sum()) >= 40 and int(rows.env.state.traded[1].sum()) == 0
    for _ in range(19):
        turns = rows.answer([0, 1], ["HOLD", "HOLD"])
    assert all(turn.truncated or turn.terminated for turn in turns) and all(0 <= turn.grade <= 1 for turn in turns)


def test_agents_that_act_by_text_have_twenty_steps_unless_told_otherwise():
    assert make_spoken("execution", 1).scenario.longest == 20
    assert make_spoken("execution", 1, max_ticks=90).scenario.longest == 3
