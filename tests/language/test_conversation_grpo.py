"""GRPO on conversations without tensors: groups of rows, those whose world failed, and states that go on."""

from dataclasses import replace

import pytest
import torch

from tests.guess_number import GUESS_NUMBER, Failing, GuessNumber
from tests.language.tiny import ALONE, SMALL
from tests.text.test_rubric import CRITERIA
from vecenv import Dialogue, Episode, make_interaction
from vecenv.language.agent import LanguageAgent
from vecenv.language.grpo import LanguageGRPO
from vecenv.language.models import chat_format
from vecenv.language.supervised import SupervisedConfig
from vecenv.language.supervised_training import fine_tune, segments_of
from vecenv.language.tiny_model import tiny_model
from vecenv.learn.group_episodes import EpisodeReward
from vecenv.registry import Task
from vecenv.text.graded import graded_by
from vecenv.text.rubric import Weights, towards

SAID = [str(number) for number in range(1, 21)]


@pytest.mark.assembly
def test_a_language_model_learns_by_a_conversation():

    worth = EpisodeReward(grade=1.0, steps=0.5, invalid=0.1)
    config = replace(ALONE, minibatches=2, learning_rate=1e-2, reward=worth, total_frames=10**6, tools=("all",))

    def learner(task: Task = GUESS_NUMBER) -> LanguageGRPO:
        model, tokenizer = tiny_model(["Guess a number from 1 to 20. Higher. Lower."], SMALL, 0)
        chat = chat_format(model, tokenizer)
        roles, first = ("user", "assistant"), "Guess a number from 1 to 20."
        told = [
            [{"role": role, "content": text} for role, text in zip(roles, (first, said), strict=True)] for said in SAID
        ]
        training = SupervisedConfig(epochs=20, batch_size=10, learning_rate=1e-2, test_fraction=0.0)
        fine_tune(model, segments_of(told, chat, config), chat.pad, training)
        return LanguageGRPO(make_interaction(task, 8), model, chat, replace(config, kl_coef=0.1), 4)

    one = learner()
    before = [parameter.detach().clone() for parameter in one.parameters]
    (episodes,) = one.collect()
    numbers = one.env.scenario.numbers
    assert numbers[:4] == [numbers[0]] * 4 and episodes.mask.shape == (6, 8) and episodes.exposure is None
    assert torch.allclose(episodes.reward.sum(0), sum(episodes.parts.values()))
    assert torch.equal(episodes.parts["steps"], 0.5 * (episodes.parts["grade"] > 0))
    # Of each row it learns as many answers as the world has heard.
    for row, segments in enumerate(episodes.said):
        assert {day for segment in segments for day in segment.day} == set(range(int(episodes.mask[:, row].sum())))
    metrics = one.update()
    assert metrics["frames"] == 48 and 0 <= metrics["grade"] <= 1 and metrics["invalid"] > 0 and "tool_calls" in metrics
    assert metrics["invalid_answers"] == pytest.approx(metrics["invalid"])
    assert one.rollouts == 2 and not all(map(torch.equal, before, one.parameters))
    other = learner()
    other.load_state_dict(one.state_dict())
    first, second = one.update(), other.update()
    assert all(first[name] == second[name] for name in ("policy_loss", "grade", "episode_reward"))
    # Rows whose world fails are no samples: the others learn what they would without them.
    other = learner(Task(name="failing", version="1", interaction=Failing))
    failing = other.env.scenario
    failing.lost, failing.dropped = (0,), (5,)
    (episodes,) = other.collect()
    alone = [one for row, one in enumerate(episodes.said) if row not in (0, 5)]
    assert episodes.failed.tolist() == [row in (0, 5) for row in range(8)] and all(alone) and not episodes.said[0]
    assert not episodes.mask[:, [0, 5]].any() and episodes.mask[0].sum() == 6
    metrics = other.update()
    assert metrics["failed"] == 0.25 and not all(map(torch.equal, before, other.parameters))
    failing.lost = range(8)
    kept = [parameter.detach().clone() for parameter in other.parameters]
    metrics = other.update()
    assert metrics["failed"] == 1.0 and metrics["grade"] != metrics["grade"]
    assert all(map(torch.equal, kept, other.parameters))
    world = make_interaction(GUESS_NUMBER, 8)
    world.longest = None
    with pytest.raises(ValueError, match="GuessNumber does not say how long an episode may be"):
        LanguageGRPO(world, one.model, one.chat, config, 4)


class Settling(GuessNumber):
    """Pays who needed least answers of a rollout, and counts rollouts."""

    rollouts = 0

    def settled(self, ids, turns):
        self.rollouts += 1
        least = min(turn.outcomes["tries"] for turn in turns)
        return [turn._replace(grade=float(turn.outcomes["tries"] == least), reward=0.25) for turn in turns]

    def measures(self):
        return {"rollouts": float(self.rollouts)}

    def state_dict(self):
        return {"rollouts": self.rollouts}

    def load_state_dict(self, state):
        self.rollouts = state["rollouts"]


@pytest.mark.assembly
def test_a_world_settles_each_rollout_and_its_weights_move_and_go_on():
    points = {0: {"right": 0.6, "quick": 0.4}, 4: {"right": 0.2, "quick": 0.4}}
    model, tokenizer = tiny_model(["Guess a number from 1 to 20. Higher. Lower."], SMALL, 0)
    config = replace(ALONE, minibatches=2, reward=EpisodeReward(grade=1.0, steps=1.0), total_frames=10**6)

    def learner() -> LanguageGRPO:
        def made(rows, config):
            return graded_by(Weights(CRITERIA), Settling(rows, config), towards(points))

        task = Task(name="settling", version="1", interaction=made)
        return LanguageGRPO(make_interaction(task, 4), model, chat_format(model, tokenizer), config, 2)

    one = learner()
    (episodes,) = one.collect()
    tries = episodes.mask.sum(0)
    assert torch.equal(episodes.parts["grade"], (tries == tries.min()).double())
    assert (episodes.parts["steps"] >= 0.25).all()
    told = one.update()
    assert (told["rollouts"], one.rollouts) == (2, 2) and told["weight_right"] == pytest.approx(0.4)
    other = learner()
    other.load_state_dict(one.state_dict())
    world = other.env.scenario
    assert world.weights.values["right"] == told["weight_right"] and world.weights.version == world.rollouts == 2
    assert other.update()["weight_right"] == pytest.approx(0.3) and other.update()["weight_right"] == pytest.approx(0.2)


def test_tool_calls_of_a_model_are_none_of_its_answers(monkeypatch):
    model, tokenizer = tiny_model(["Guess a number from 1 to 20."], SMALL, 0)
    agent = LanguageAgent(model, chat_format(model, tokenizer), replace(ALONE, tools=("all",), turns=2))
    call = '{"name": "is_odd", "arguments": {}}'

    def said(progress, places, texts, called):
        return ["7" if called[place] else call for place in places]

    monkeypatch.setattr(agent, "_say", said)
    world = make_interaction(GUESS_NUMBER, 2)
    played = agent.talk(Dialogue(world, agent.config.turn_rules), [Episode(3, 0), Episode(3, 1)])
    assert [len(turns) for turns in played] == world.tries and agent.calls["calls"] == sum(world.tries) > 0
    assert all(turn.outcomes is not None for turns in played for turn in turns)
