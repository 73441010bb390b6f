"""Order books in words: what is shown is what is there, answers are carried out, and nothing that is written raises."""

from decimal import Decimal

import pytest
import torch

import vecenv
from vecenv.registry import make_spoken
from vecenv.tasks.crypto_lob.orders import KEEP, Order
from vecenv.tasks.crypto_lob.text import INVALID, LobLanguage
from vecenv.text.door import TextDoor

LANGUAGE = LobLanguage(0.1, 1e-4, 200, resting=True)
MARKET_ONLY = LobLanguage(0.1, 1e-4, 200, resting=False)
HOLD, KEPT, GONE = (int(Order.HOLD), 0), (KEEP, 0), (0, 0)
UNIT = (int(Order.TRADE), 200)

VALID = {
    "hold": (HOLD, KEPT, KEPT),
    "HOLD\nHOLD": (HOLD, KEPT, KEPT),
    "Buy": (UNIT, KEPT, KEPT),
    "SELL .5": ((int(Order.TRADE), -5_000), KEPT, KEPT),
    "buy\t1,000.00019": ((int(Order.TRADE), 10_000_001), KEPT, KEPT),
    "CLOSE; bid 0.02 at $94,125.14": ((int(Order.TARGET), 0), (941_251, 200), KEPT),
    "ASK 1@2.": (HOLD, KEPT, (20, 10_000)),
    "BID 0; ASK 3 @ 5": (HOLD, GONE, (50, 30_000)),
    "cancel": (HOLD, GONE, GONE),
    "<think>SELL 9</think><answer>BUY</answer>": (UNIT, KEPT, KEPT),
    "BUY; ASK 0.00": (UNIT, KEPT, GONE),
}
WRONG = (
    *("", "   ", "buy now", "BUY -1", "BUY 0", "BUY 0.00001", "BUY 1e3", "BUY 200000", "BUY; SELL", "CLOSE; BUY"),
    *("BID 1", "BID 1 AT 0", "BID 1 AT 0.04", "BID 1 AT 1; BID 2 AT 1", "CANCEL; ASK 0", "BID 0 AT 5"),
    *("BUY" + " 1" * 9, "BUY 0." + "1" * 23, "ASK 1 AT " + "9" * 30, "HODL", None, 3),
)


def test_orders_are_read_and_others_are_invalid():
    for text, orders in VALID.items():
        assert LANGUAGE.parse(text) == orders, text
    for text in WRONG:
        assert LANGUAGE.parse(text) is None, text
    actions, valid = LANGUAGE.tensor([None])
    assert actions.tolist() == [[list(part) for part in INVALID]] and not bool(valid)
    for lots, ticks in ((1, 1), (10_000, 7), (1_234_567, 2**30)):
        text = f"BID {LANGUAGE.coins(lots)} AT {LANGUAGE.price(ticks)}"
        assert LANGUAGE.parse(text) == (HOLD, (ticks, lots), KEPT)
    # Where orders cannot rest.
    for text in ("BID 1 AT 5", "ASK 0", "CANCEL"):
        assert MARKET_ONLY.parse(text) is None and MARKET_ONLY.parse("SELL; HOLD") is not None


def test_texts_show_the_state_at_every_step():
    """Prices, sizes, factors and resting orders, as numbers of the tape."""
    env = make_spoken("crypto_lob", 3, seed=2, action="limit", synthetic_hours=0.5, step_gap=1.0)
    door, tape, resting = TextDoor(env), env.scenario.tape, 0
    while not bool(env.rows.done.all()):
        seen, rows = env.observations(), env.state.row.long()
        for number, text in enumerate(door.render(range(3))):
            ladder = text.split("asks\n")[1].split("\nFactors")[0].replace(",", "").splitlines()
            got = [[Decimal(part) for part in line.split()] for line in ladder]
            columns = (part[rows[number], :, :5].tolist() for part in (tape.price, tape.size))
            asks, bids = (
                [[Decimal(p), Decimal(s) / 10**6] for p, s in zip(*side, strict=True)]
                for side in zip(*columns, strict=True)
            )
            assert got == asks[::-1] + [[s, p] for p, s in bids]
            told = [float(part.split(" ")[-1]) for part in text.split("Factors: ")[1].split("\n")[0].split(", ")]
            assert told == pytest.approx(seen[number, -len(told) :].tolist(), rel=6e-3, abs=1e-9)
            resting += text.count("before it")
        orders, valid = door.parse([f"BUY; ASK 0.01 AT {p + 1}" for p in tape.price[rows, 0, 0].tolist()], range(3))
        assert bool(valid.all())
        env.advance(orders, eager=True)
    assert resting > 3 and bool((env.state.traded > 0).all())


def test_orders_in_text_do_what_actions_do():
    """BUY, CLOSE and HOLD are targets of 1, 0 and none."""
    small = {"synthetic_hours": 0.5, "episode_steps": 10}
    envs = [vecenv.make("crypto_lob", 2, seed=3, compile=False, depth=depth, **small) for depth in (5, 0)]
    door = TextDoor(envs[0])
    for answer, choice in (("BUY", 2), ("HOLD", 2), ("CLOSE", 1), ("SELL", 0), ("nonsense", 0)):
        orders, valid = door.parse([answer] * 2, range(2))
        assert bool(valid.all()) == (answer != "nonsense")
        envs[0].advance(orders, eager=True)
        envs[1].advance(torch.full((2, 1), choice), eager=True)
        assert torch.equal(envs[0].state.cash, envs[1].state.cash)
    assert envs[0].state.invalid.tolist() == [1, 1] and bool((envs[0].state.position < 0).all())


@pytest.mark.parametrize("action", ["target", "limit"])
def test_instructions_tell_the_rules(action):
    env = make_spoken("crypto_lob", 1, action=action, latency=2, taker_fee=3.0, synthetic_hours=4.0)
    (text,) = env.scenario.text.instructions(env.state)
    assert "20 steps of 30 seconds" in text and "2 steps later" in text and "fee of 3 basis points" in text
    assert "at most 0.02 coins" in text and "CLOSE" in text
    assert ("BID 0.02 AT" in text) == ("BID" in text) == (action == "limit")
    env.scenario.tape.open[int(env.state.row[0])] = False
    assert "There is no fresh book" in TextDoor(env).render([0])[0]
