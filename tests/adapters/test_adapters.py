"""Every adapter shows and pays what the environment does by itself, and the contract names planted faults."""

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import vecenv
from tests.adapters.served_market import Lone, service_of, small_env, tape_of
from tests.reach_zero import REACH_ZERO
from vecenv.testing import ConformanceFault, check_adapter
from vecenv.testing.adapters import NumberPlay, TextPlay, Turn
from vecenv.text.dialogue import Dialogue, TextRules
from vecenv.text.tensor_interaction import TensorInteraction

pytest.importorskip("gymnasium")
gem = pytest.importorskip("gem")
pytest.importorskip("openenv", reason="the server needs vecenv[openenv]")

import vecenv.adapters.gem  # noqa: E402, registers the ids
from vecenv.adapters.gymnasium_env import GymnasiumEnv  # noqa: E402
from vecenv.adapters.gymnasium_vector import GymnasiumVectorEnv  # noqa: E402
from vecenv.adapters.openenv import TextAction  # noqa: E402
from vecenv.adapters.openenv.session import TextSession  # noqa: E402
from vecenv.adapters.sessions.service import SessionError  # noqa: E402

SHORT = {"market_options": {"num_paths": 2, "num_days": 330}, "episode_length": 4, "min_episode_length": 4}
ROWS = SHORT | {"autoreset_mode": "Disabled", "compile": False}
PLANTED = {"market": "planted", "market_options": {"num_paths": 3, "num_days": 330}, "context": ["signal"]}
TAPE = tape_of()
ANSWERS = (["BUY 0.5"], ["nonsense"], ["SELL 30%"], ["HOLD"])
WRONG = ([""], [None], [3], ["x" * 49_152], ["<think>BUY"], ["\ud800"])


def tilts(rows: int) -> list[list[np.ndarray]]:
    draw = np.random.default_rng(0)
    return [list(draw.uniform(-1, 1, (rows, 30)).astype(np.float32)) for _ in range(4)]


class Played:
    """An environment of Gymnasium, of one row or of several, or of GEM, which has nothing to close."""

    def __init__(self, make: Callable[[], Any], rows: int, seed: int) -> None:
        self.env, self.rows = make(), rows
        shown, self.close = self.env.reset(seed=seed)[0], getattr(self.env, "close", lambda: None)
        self.shown = shown if rows > 1 else [shown]

    def act(self, answers: Any) -> Turn:
        given = np.stack(answers) if self.rows > 1 else answers[0]
        shown, *paid, terminated, truncated, _ = self.env.step(given)
        ended = np.logical_or(terminated, truncated)
        return Turn(shown, paid[0].tolist(), ended.tolist()) if self.rows > 1 else Turn([shown], paid, [bool(ended)])


class Session:
    """A session of a service whose other row is taken."""

    def __init__(self, seed: int) -> None:
        service = service_of({"train": TAPE}, 2)
        self.other, self.session = TextSession(service), TextSession(service)
        self.other.reset(index=5)
        self.shown, self.close = [self.session.reset(seed=seed, index=0).text], self.session.close

    def act(self, answers: Any) -> Turn:
        async def both() -> Any:
            asked = self.session.step_async(TextAction(text=answers[0]))
            if self.other.state.done:
                return (await asked,)
            return await asyncio.gather(asked, self.other.step_async(TextAction(text="BUY")))

        seen, *_ = asyncio.run(both())
        return Turn([seen.text], [seen.reward], [seen.done])


def numbers_alone(rows: int, seed: int) -> NumberPlay:
    return NumberPlay(vecenv.make("stock_trading", rows, seed=seed, compile=False, **SHORT))


def gem_alone(seed: int) -> TextPlay:
    env = small_env(1, TAPE)
    env.set_seed(seed, static_seed=True)
    return TextPlay(Dialogue(TensorInteraction(env), TextRules(format_penalty=-0.1)))


ONE = partial(Played, partial(GymnasiumEnv, "stock_trading", **SHORT), 1)
THREE = partial(Played, partial(GymnasiumVectorEnv, "stock_trading", 3, **ROWS), 3)
GEM = partial(Played, partial(gem.make, "vecenv/single_stock_costs", **PLANTED, days=4), 1)
WRONG_ONE = ([np.zeros(2)], [np.full(30, np.nan)], [["a"] * 30])
WRONG_THREE = ([np.zeros(30)] * 2, [np.full(30, np.inf)] * 3)
ADAPTERS: dict[str, tuple[Any, ...]] = {
    "gymnasium": (ONE, partial(numbers_alone, 1), tilts(1), WRONG_ONE, (ValueError, TypeError), RuntimeError),
    "gymnasium vector": (THREE, partial(numbers_alone, 3), tilts(3), WRONG_THREE, ValueError, RuntimeError),
    "gem": (GEM, gem_alone, ANSWERS, (*WRONG, ["x" * 60_000]), (), RuntimeError),
    "openenv": (Session, lambda seed: TextPlay(Lone(TAPE, seed, 0).rows), ANSWERS, WRONG, ValueError, SessionError),
}


@pytest.mark.parametrize("name", ADAPTERS)
def test_adapters_conform(name):
    check_adapter(name, *ADAPTERS[name])


STEPS = [[torch.tensor([part]) for part in (0.01 * step, -0.02)] for step in range(20)]


class Walking(NumberPlay):
    """Two rows of the walk, with one fault or none."""

    playing: list["Walking"] = []  # noqa: RUF012
    opened: Counter[int] = Counter()  # noqa: RUF012

    def __init__(self, seed: int, fault: str = "") -> None:
        self.opened[seed] += 1
        own = 3 if fault in ("deaf", "blind") else seed + (fault == "restless" and self.opened[seed] == 2)
        super().__init__(vecenv.make(REACH_ZERO, 2, seed=own, compile=False))
        self.fault, self.over, self.closed = fault, False, False
        self.playing.append(self)

    def act(self, answers: Any) -> Turn:
        if self.over and self.fault != "forgetful":
            raise RuntimeError
        if not all(bool(torch.as_tensor(answer).isfinite().all()) for answer in answers):
            if self.fault == "moving":
                super().act(STEPS[5])
            raise ValueError
        for other in self.playing:
            if self.fault == "shared" and other is not self:
                NumberPlay.act(other, answers)
        turn = super().act(answers)
        self.over = all(turn.ended)
        if self.fault == "blurred":
            return turn._replace(shown=[shown + 1e-6 for shown in turn.shown])
        if self.fault == "paying" or (self.fault == "charging" and max(answers) > 1):
            return turn._replace(rewards=[reward * (1 + 1e-5) for reward in turn.rewards])
        return turn._replace(ended=[False, False]) if self.fault == "endless" else turn

    def close(self) -> None:
        if self.closed and self.fault == "clinging":
            raise OSError("closed already")
        self.closed, self.playing[:] = True, [other for other in self.playing if other is not self]


FAULTS = {
    "paying": "numbers: seed 3, step 0: a row's reward is not the environment's",
    "endless": "numbers: seed 3, step 19: a row's end is not the environment's",
    "blurred": "numbers: seed 3, step 0: a row's text or observation is not the environment's",
    "short": "numbers: no episode ends: give more answers",
    "restless": "seeds: equal seeds show different episodes",
    "blind": "seeds: different seeds show the same episode",
    "charging": r"wrong answers: .*2\.\D* has another effect",
    "deaf": "numbers: seed 4: what is shown first is not the environment's",
    "shared": "rows side by side: one is disturbed by another",
    "moving": "wrong answers: the rows do not go on after",
    "forgetful": "ends of episodes: an answer after the end is taken",
    "clinging": "closing: OSError: closed already",
}


@pytest.mark.parametrize("fault", ["", *FAULTS])
def test_a_planted_fault_of_an_adapter_is_named(fault):
    def alone(seed: int) -> NumberPlay:
        return NumberPlay(vecenv.make(REACH_ZERO, 2, seed=3 if fault == "blind" else seed, compile=False))

    _ = Walking.playing.clear(), Walking.opened.clear()
    steps, wrong = STEPS[: 2 if fault == "short" else None], [[torch.tensor([each])] * 2 for each in (torch.nan, 2.0)]
    with pytest.raises(ConformanceFault, match=f"^walking: {FAULTS[fault]}") if fault else nullcontext():
        check_adapter("walking", partial(Walking, fault=fault), alone, steps, wrong, ValueError, RuntimeError)
