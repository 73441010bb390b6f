"""A game as a stranger would write it: planes, a mask and draws at every step; no line of `vecenv` knows it."""

import torch
from tensordict import TensorClass
from torch import Tensor
from torchrl.data import Categorical

import vecenv
from vecenv.core.random import randint, uniform

SIDE, LONGEST, MOVES = 5, 20, ("up", "down", "left", "right")
STEPS = ((-1, 0), (1, 0), (0, -1), (0, 1))


class Board(TensorClass):
    place: Tensor
    food: Tensor
    eaten: Tensor
    steps: Tensor


class Forage(vecenv.Masked, vecenv.Drawing[Board]):
    """Walk on a square to food, which appears elsewhere when it is eaten, and sometimes is blown away."""

    longest = LONGEST

    def __init__(self, config):
        self.params, self.action_spec = {"wind": torch.tensor(0.05)}, Categorical(4, (1,), dtype=torch.int64)
        self.shared = {"moves": torch.tensor(STEPS)}

    def reset(self, key, params, shared):
        place, food = (randint(key, stream, SIDE, torch.arange(2, device=key.episode.device)) for stream in (0, 1))
        return Board(place=place, food=food, eaten=0 * key.episode, steps=0 * key.episode, batch_size=[])

    def drawn_step(self, state, action, key, params, shared):
        place = (state.place + shared["moves"][action[0]]).clamp(0, SIDE - 1)
        elsewhere = randint(key, 0, SIDE, torch.arange(2, device=place.device))
        found = (place == state.food).all()
        food = torch.where(found | (uniform(key, 1) < params["wind"]), elsewhere, state.food)
        return Board(place=place, food=food, eaten=state.eaten + found, steps=state.steps + 1, batch_size=[])

    def observation(self, state, params, shared):
        cells = torch.arange(SIDE * SIDE, device=state.place.device)
        planes = [cells == where[0] * SIDE + where[1] for where in (state.place, state.food)]
        after = state.place + shared["moves"]
        return {
            "board": torch.stack(planes).reshape(2, SIDE, SIDE),
            "time": (state.steps / LONGEST).reshape(1),
            "mask": ((after >= 0) & (after < SIDE)).all(-1),
        }

    def action_mask(self, observation):
        return observation["mask"]

    def reward(self, state, action, next_state, params, shared):
        return (next_state.eaten - state.eaten).float()

    def terminated(self, state, params, shared):
        return state.eaten >= LONGEST

    def truncated(self, state, params, shared):
        return state.steps >= LONGEST

    def grade(self, state, params, shared):
        return state.eaten / LONGEST

    def info(self, state, params, shared):
        return {"eaten": state.eaten}


class ForageText(vecenv.TextInterface):
    def __init__(self, scenario):
        self.scenario = scenario

    def render(self, observations, state):
        cells = (observations["board"].int() * torch.tensor([1, 2]).view(2, 1, 1)).sum(1)
        return ["\n".join("".join(".mf*"[cell] for cell in row) for row in board) for board in cells.tolist()]

    def instructions(self, state):
        return ["You are m; walk to f. Answer up, down, left or right."] * len(state.steps)

    def parse(self, texts, state):
        valid = [text in MOVES for text in texts]
        chosen = [MOVES.index(text) if known else 0 for text, known in zip(texts, valid, strict=True)]
        return torch.tensor(chosen).unsqueeze(-1), torch.tensor(valid)

    def random_answer(self, draw):
        return draw.choice(MOVES)


FORAGE = vecenv.Task(name="forage", version="1", scenario=Forage, outcomes={"eaten": "count"}, text=ForageText)
