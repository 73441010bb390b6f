"""Every adapter shows and pays what the environment does by itself, and the contract names planted faults."""

import asyncio
from typing import Any

import numpy as np
import pytest
import torch

import vecenv
from tests.adapters.served_market import Lone, service_of, small_env, tape_of
from tests.reach_zero import REACH_ZERO
from vecenv.testing import TaskFault, check_adapter
from vecenv.testing.adapters import NumberPlay, TextPlay, Turn
from vecenv.text.turns import TextRows, TextRules

pytest.importorskip("gymnasium")
gem = pytest.importorskip("gem")
pytest.importorskip("openenv", reason="the server needs vecenv[openenv]")

import vecenv.adapters.gem  # noqa: E402, registers the ids
from vecenv.adapters.gymnasium_env import GymnasiumEnv  # noqa: E402
from vecenv.adapters.gymnasium_vector import GymnasiumVectorEnv  # noqa: E402
from vecenv.adapters.openenv import MarketAction  # noqa: E402
from vecenv.adapters.openenv.service import SessionError  # noqa: E402
from vecenv.adapters.openenv.session import MarketSession  # noqa: E402

SMALL = {"market": "synthetic", "market_options": {"num_paths": 2, "num_days": 330}}
SHORT = SMALL | {"episode_length": 4, "min_episode_length": 4}
PLANTED = {"market": "planted", "market_options": {"num_paths": 3, "num_days": 330}, "context": ["signal"]}
TAPE = tape_of()
ANSWERS = (["BUY 0.5"], ["nonsense"], ["SELL 30%"], ["HOLD"])
WRONG = ([""], [None], [3], ["x" * 10**5], ["<think>BUY"], ["\ud800"])


def tilts(rows: int) -> list[list[np.ndarray]]:
    draw = np.random.default_rng(0)
    return [list(draw.uniform(-1, 1, (rows, 30)).astype(np.float32)) for _ in range(4)]


class Vector:
    def __init__(self, seed: int, rows: int = 3) -> None:
        self.env = GymnasiumVectorEnv("stock_trading", rows, autoreset_mode="Disabled", compile=False, **SHORT)
        self.shown, self.close = self.env.reset(seed=seed)[0], self.env.close

    def act(self, answers: Any) -> Turn:
        shown, reward, terminated, truncated, _ = self.env.step(np.stack(answers))
        return Turn(shown, reward.tolist(), (terminated | truncated).tolist())


class Single:
    """An environment of one row, of Gymnasium or of GEM, which has nothing to close."""

    def __init__(self, env: Any, seed: int) -> None:
        self.env, self.shown = env, [env.reset(seed=seed)[0]]
        self.close = getattr(env, "close", lambda: None)

    def act(self, answers: Any) -> Turn:
        shown, reward, terminated, truncated, _ = self.env.step(answers[0])
        return Turn([shown], [reward], [terminated or truncated])


class Session:
    """A session of a service whose other row is taken."""

    def __init__(self, seed: int) -> None:
        service = service_of({"train": TAPE}, 2)
        self.other, self.session = MarketSession(service), MarketSession(service)
        self.other.reset(index=5)
        self.shown, self.close = [self.session.reset(seed=seed, index=0).text], self.session.close

    def act(self, answers: Any) -> Turn:
        async def both() -> Any:
            asked = self.session.step_async(MarketAction(text=answers[0]))
            if self.other.state.done:
                return (await asked,)
            return await asyncio.gather(asked, self.other.step_async(MarketAction(text="BUY")))

        seen, *_ = asyncio.run(both())
        return Turn([seen.text], [seen.reward], [seen.done])


def numbers_alone(seed: int, rows: int) -> NumberPlay:
    return NumberPlay(vecenv.make("stock_trading", rows, seed=seed, compile=False, **SHORT))


def gem_alone(seed: int) -> TextPlay:
    env = small_env(1, TAPE)
    env.set_seed(seed, static_seed=True)
    return TextPlay(TextRows(env, TextRules(format_penalty=-0.1)))


ADAPTERS: dict[str, tuple[Any, ...]] = {
    "gymnasium": (
        lambda seed: Single(GymnasiumEnv("stock_trading", **SHORT), seed),
        lambda seed: numbers_alone(seed, 1),
        tilts(1),
        ([np.zeros(2)], [np.full(30, np.nan)], [["a"] * 30]),
        (ValueError, TypeError),
        RuntimeError,
    ),
    "gymnasium vector": (
        Vector,
        lambda seed: numbers_alone(seed, 3),
        tilts(3),
        ([np.zeros(30)] * 2, [np.full(30, np.inf)] * 3),
        ValueError,
        RuntimeError,
    ),
    "gem": (
        lambda seed: Single(gem.make("vecenv/single_stock_costs", **PLANTED, days=4), seed),
        gem_alone,
        ANSWERS,
        WRONG,
        (),
        RuntimeError,
    ),
    "openenv": (Session, lambda seed: TextPlay(Lone(TAPE, seed, 0).rows), ANSWERS, WRONG, ValueError, SessionError),
}


@pytest.mark.parametrize("name", ADAPTERS)
def test_adapters_conform(name):
    check_adapter(name, *ADAPTERS[name])


STEPS = [[torch.tensor([part]) for part in (0.01 * step, -0.02)] for step in range(20)]


class Walking(NumberPlay):
    def __init__(self, seed: int) -> None:
        super().__init__(vecenv.make(REACH_ZERO, 2, seed=seed, compile=False))
        self.over = False

    def act(self, answers: Any) -> Turn:
        if self.over:
            raise RuntimeError
        if not all(bool(torch.as_tensor(answer).isfinite().all()) for answer in answers):
            raise ValueError
        turn = super().act(answers)
        self.over = all(turn.ended)
        return turn


class Paying(Walking):
    def act(self, answers: Any) -> Turn:
        turn = super().act(answers)
        return turn._replace(rewards=[reward * (1 + 1e-5) for reward in turn.rewards])


class Endless(Walking):
    def act(self, answers: Any) -> Turn:
        return super().act(answers)._replace(ended=[False, False])


class Deaf(Walking):
    def __init__(self, seed: int) -> None:
        super().__init__(3)


class Forgetful(Walking):
    def act(self, answers: Any) -> Turn:
        self.over = False
        return super().act(answers)


class Shared(Walking):
    playing: list[Walking] = []  # noqa: RUF012

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.playing.append(self)

    def act(self, answers: Any) -> Turn:
        for one in self.playing:
            if one is not self:
                Walking.act(one, answers)
        return super().act(answers)

    def close(self) -> None:
        if self in self.playing:
            self.playing.remove(self)


class Moving(Walking):
    def act(self, answers: Any) -> Turn:
        try:
            return super().act(answers)
        except ValueError:
            super().act(STEPS[5])
            raise


class Clinging(Walking):
    closed = False

    def close(self) -> None:
        if self.closed:
            raise OSError("closed already")
        self.closed = True


FAULTS = {
    Paying: "numbers: seed 3, step 0: a row's reward is not the environment's",
    Endless: "numbers: seed 3, step 19: a row's end is not the environment's",
    Deaf: "numbers: seed 4: what is shown first is not the environment's",
    Shared: "rows side by side: one is disturbed by another",
    Moving: "wrong answers: the rows do not go on after",
    Forgetful: "ends of episodes: an answer after the end is taken",
    Clinging: "closing: OSError: closed already",
}


@pytest.mark.parametrize("kind", FAULTS)
def test_a_planted_fault_of_an_adapter_is_named(kind):
    def alone(seed: int) -> NumberPlay:
        return NumberPlay(vecenv.make(REACH_ZERO, 2, seed=seed, compile=False))

    given = (alone, STEPS, [[torch.tensor([torch.nan])] * 2], ValueError, RuntimeError)
    check_adapter("walking", Walking, *given)
    with pytest.raises(TaskFault, match=f"^walking: {FAULTS[kind]}"):
        check_adapter("walking", kind, *given)
