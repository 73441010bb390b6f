"""A game of levels as a stranger would write it: repeat signs, as many as the level says; a mistake ends it."""

import torch
from tensordict import TensorClass
from torch import Tensor
from torchrl.data import Categorical

import vecenv
from vecenv.core.random import randint

SIGNS = 4


class Signs(TensorClass):
    shown: Tensor
    level: Tensor
    told: Tensor
    wrong: Tensor


class Repeat(vecenv.Levelled, vecenv.Drawing[Signs]):
    """Answer the sign that is shown. Only who has answered all of the level's is rewarded."""

    levels, longest = (1, 2, 4, 6), 6

    def __init__(self, config):
        self.params, self.shared = {"level": torch.tensor(self.levels[-1])}, {}
        self.action_spec = Categorical(SIGNS, (1,), dtype=torch.int64)

    def reset(self, key, params, shared):
        sign, none = randint(key, 0, SIGNS), 0 * key.episode
        return Signs(shown=sign, level=params["level"].clone(), told=none, wrong=none > 0, batch_size=[])

    def drawn_step(self, state, action, key, params, shared):
        right = action[0] == state.shown
        return state.replace(shown=randint(key, 0, SIGNS), told=state.told + right, wrong=~right)

    def observation(self, state, params, shared):
        return (torch.nn.functional.one_hot(state.shown, SIGNS).float(),)

    def reward(self, state, action, next_state, params, shared):
        return (next_state.told >= next_state.level).float()

    def terminated(self, state, params, shared):
        return state.wrong | (state.told >= state.level)

    def truncated(self, state, params, shared):
        return state.wrong & ~state.wrong

    def grade(self, state, params, shared):
        return (state.told >= state.level).float()

    def info(self, state, params, shared):
        return {"told": state.told}


REPEAT = vecenv.Task(name="repeat_signs", version="1", scenario=Repeat, outcomes={"told": "count"})
