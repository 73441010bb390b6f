"""Text of some rows of a batch, down to none."""

from __future__ import annotations

import pytest
import torch

import vecenv
from vecenv.core.env import VecEnv
from vecenv.text.door import TextDoor

NUM_ENVS = 4


@pytest.fixture(scope="module", params=["orders", "discrete", "limit_weights"])
def env(request) -> VecEnv:
    small = {"num_paths": 2, "num_days": 300}
    return vecenv.make("multi_stock_3", NUM_ENVS, action=request.param, market_options=small, compile=False)


def test_texts_are_those_of_the_rows_asked_for(env):
    every = TextDoor(env).render(range(NUM_ENVS))
    assert len(set(every)) == NUM_ENVS
    assert TextDoor(env).render([2, 0]) == [every[2], every[0]]


def test_no_rows_have_no_texts(env):
    assert TextDoor(env).render([]) == []
    actions, valid = TextDoor(env).parse([], [])
    assert actions.shape == (0, 8, 3) and actions.dtype == torch.float32
    assert valid.shape == (0,) and valid.dtype == torch.bool


def test_rows_that_do_not_exist_and_texts_too_few_are_refused(env):
    with pytest.raises(IndexError, match=r"rows \[4\] are not all in \[0, 4\)"):
        TextDoor(env).render([4])
    with pytest.raises(ValueError, match="1 texts do not fit 2 rows"):
        TextDoor(env).parse(["HOLD"], [0, 1])


def test_a_task_without_text_says_so():
    env = vecenv.make("stock_trading", 2, market_options={"num_paths": 2, "num_days": 400}, compile=False)
    with pytest.raises(ValueError, match="'stock_trading' has no text"):
        TextDoor(env)
