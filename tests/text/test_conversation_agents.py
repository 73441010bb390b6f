"""Agents of conversations: compared on the same episodes, without those whose world failed; bad ones are named."""

import math

import pytest
import torch

from tests.guess_number import Failing, GuessNumber, Halving, Knows, guessing
from vecenv import Episode, make_interaction
from vecenv.learn.conversations import evaluate_conversations
from vecenv.text.agents import converse
from vecenv.text.dialogue import Dialogue, TextRules

EPISODES = [Episode(3, index) for index in range(8)]


class Asks(Knows):
    """Asks for a hint first, and says the number then."""

    def answer(self, world, ids, shown):
        right = super().answer(world, ids, shown)
        begins = [text.startswith("Guess a number") for text in shown]
        return ['{"name": "is_odd"}' if first else number for number, first in zip(right, begins, strict=True)]


def tries(world: GuessNumber) -> list[float]:
    """Return how many guesses halving takes in each row, from the rule."""
    counts = []
    for number in world.numbers:
        low, high, count = 1, 20, 1
        while (guess := (low + high) // 2) != number:
            low, high, count = (guess + 1, high, count + 1) if guess < number else (low, guess - 1, count + 1)
        counts.append(float(count))
    return counts


def test_agents_talk_in_the_same_episodes_and_tool_calls_are_no_answers():
    world = make_interaction(guessing(), 8)
    found = evaluate_conversations(
        world,
        {"halving": Halving(), "asks": Asks()},
        EPISODES,
        TextRules(grade=0.0, steps=1.0, tools=("all",), turns=2),
    )
    halving, asks, random = (found.records[name] for name in ("halving", "asks", "random"))
    counts = torch.tensor(tries(world), dtype=torch.float64)
    assert list(found.records) == ["halving", "asks", "random"] and found.num_episodes == 8
    assert torch.equal(halving.outcomes["tries"], counts) and torch.equal(halving.length, counts.long())
    assert torch.equal(halving.grades["grade"], 1 - counts / 10) and torch.equal(
        halving.reward, torch.ones_like(counts)
    )
    # The call is none of the answers, but of what was said.
    assert asks.length.tolist() == [1] * 8 and asks.outcomes["tries"].tolist() == [1.0] * 8
    said = found.conversations["asks"][2]
    assert [turn.call for turn in said.turns] == [None, "is_odd", None] and said.index == 2 and said.finished
    assert [one["role"] for one in said.messages()] == ["system", "user", "assistant", "user", "assistant"]
    assert said.messages()[3]["content"].startswith("It is ") and said.messages()[-1]["content"] == said.turns[-1].said
    assert (found.reference, found.hindsight) == ("halving", "knows")
    gap = found.agent_json("random")["minus_halving"]["reward"]["mean"]
    assert gap == pytest.approx(float((random.reward - halving.reward).mean())) and gap < 0
    # Without the reference differences are to random answers, of which there are the task's own if it has them.
    alone = evaluate_conversations(world, {"random": Knows()}, EPISODES)
    assert alone.reference == "random" and alone.records["random"].length.tolist() == [1] * 8


def test_episodes_whose_world_failed_are_left_out_of_all_agents():
    world = make_interaction(guessing(interaction=Failing), 8)
    world.lost, world.dropped = (0,), (5,)

    class Knowing(Knows):
        def answer(self, world, ids, shown):
            return super().answer(world.world, ids, shown)

    found = evaluate_conversations(world, {"halving": Halving(), "knows": Knowing()}, EPISODES)
    counts = tries(world.world)
    kept = [row for row in range(8) if row != 0 and (row != 5 or counts[5] < 2)]
    assert counts[5] >= 2 and found.failed == 2 and found.num_episodes == 6
    assert found.records["halving"].outcomes["tries"].tolist() == [counts[row] for row in kept]
    assert all([record.index for record in said] == kept for said in found.conversations.values())
    assert "2 episodes whose world failed" in found.notes()[0] and found.to_json()["failed"] == 2
    world.lost = range(8)
    with pytest.raises(ValueError, match="the world failed in all 8 episodes"):
        evaluate_conversations(world, {}, EPISODES)


def test_outcomes_are_means_over_the_episodes_in_which_they_are_known():
    class Silent(GuessNumber):
        def guess(self, row, message):
            turn = super().guess(row, message)
            return turn._replace(outcomes={"tries": math.nan}) if self.tries[row] > 3 else turn

    world = make_interaction(guessing(interaction=Silent), 8)
    found = evaluate_conversations(world, {"halving": Halving()}, EPISODES)
    known = [count for count in tries(world) if count <= 3]
    assert 0 < len(known) < 8 and found.outcomes["halving"]["tries"].mean == pytest.approx(sum(known) / len(known))


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (lambda *_: 1 / 0, "agent 'mine' of task 'guess_number' fails with ZeroDivisionError: division by zero"),
        (lambda self, world, ids, shown: ["7"], "agent 'mine' of task 'guess_number' returns 1 messages for 2 rows"),
        (lambda self, world, ids, shown: [7] * len(ids), "'mine' of task 'guess_number' must answer a text, got 7"),
        (lambda self, world, ids, shown: None, "'mine' of task 'guess_number' fails with TypeError"),
    ],
)
def test_an_agent_that_fails_is_named_with_its_task(answer, told):
    dialogue = Dialogue(make_interaction(guessing(), 2))
    with pytest.raises(ValueError, match=told):
        converse(dialogue, type("Mine", (), {"answer": answer})(), EPISODES[:2], "mine")
    dialogue.interaction.longest = None
    with pytest.raises(ValueError, match="GuessNumber does not say how long an episode may be"):
        converse(dialogue, Knows(), EPISODES[:2])
