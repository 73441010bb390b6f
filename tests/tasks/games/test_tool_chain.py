"""Chains of tools: what a call returns by its own arithmetic, how many calls an answer needs by all sequences."""

from dataclasses import replace
from functools import partial
from itertools import product

import pytest
import torch

import vecenv
from vecenv.learn.conversations import evaluate_conversations
from vecenv.learn.evaluation import evaluate
from vecenv.registry import make_spoken
from vecenv.tasks.games.tool_chain.config import KINDS, NOUNS, ToolChainConfig
from vecenv.tasks.games.tool_chain.scenario import ANSWER, ToolChain
from vecenv.tasks.games.tool_chain.task import TOOL_CHAIN
from vecenv.tasks.games.tool_chain.tools import ChainTools
from vecenv.testing import check_interaction, check_task
from vecenv.text.answer_lines import AnswerFault
from vecenv.text.dialogue import Dialogue, TextRules
from vecenv.text.interaction import Episode
from vecenv.text.tool_calls import ToolCall
from vecenv.tools.mocks import recorded
from vecenv.tools.recording import Recording
from vecenv.tools.sourced import with_sources


def game(num_envs=64, seed=0, **params):
    env = vecenv.make(TOOL_CHAIN, num_envs, seed=seed, compile=False, params=params or None)
    env.reset()
    return env


def returned(salt, gives, argument):
    word = (salt + gives * 2654435769 + argument * 2246822507) % 2**32
    word = (word ^ word >> 15) * 739982445 % 2**32
    word = (word ^ word >> 12) * 695872825 % 2**32
    return (word ^ word >> 15) * 1000 // 2**32


def chain(takes, start, target):
    """The kinds from the start to the target, by going back."""
    way = [target]
    while way[-1] != start:
        way.append(takes[way[-1]])
    return way[::-1]


def test_it_conforms():
    check_task(TOOL_CHAIN, compiled=False, steps=8)
    check_interaction(TOOL_CHAIN)


def test_worlds_are_trees_and_the_answer_is_at_the_end_of_a_chain_of_as_many_calls_as_the_level():
    levels, tools = torch.arange(1, 7).repeat(64), torch.arange(1, 10).repeat(43)[:384]
    state = game(384, level=levels, num_tools=tools).state
    columns = (state.takes, state.known, state.start, state.target, state.truth, state.salt)
    leaves = 0
    for row, (takes, known, start, target, truth, salt) in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
        way = chain(takes, start, target)
        assert len(way) == levels[row] + 1
        assert sum(kind >= 0 for kind in takes) == max(tools[row], levels[row])
        assert all(chain(takes, start, kind) for kind in range(KINDS) if takes[kind] >= 0), "all can be reached"
        value = known[start]
        for kind in way[1:]:
            value = returned(salt, kind, value)
        assert value == truth and sum(one >= 0 for one in known) == 1
        leaves += target not in takes
    assert 60 < leaves < 384, "chains may go on behind the target"


@pytest.mark.parametrize("level", [1, 2, 3])
def test_no_shorter_sequence_of_calls_finds_it_and_one_sequence_of_so_many_does(level):
    sequences = torch.tensor(list(product(range(5), repeat=level)))
    rows = len(sequences)
    params = {"level": torch.full((rows,), level), "num_tools": torch.full((rows,), 4)}
    # Rows of one and the same episode.
    env = vecenv.make(TOOL_CHAIN, rows, compile=False, params=params, env_ids=torch.zeros(rows, dtype=torch.int64))
    env.reset()
    takes, start = env.state.takes[0], env.state.start[:1]
    kinds = torch.cat([(takes >= 0).nonzero().flatten(), start])
    for place in range(level):
        assert (env.state.known.gather(1, env.state.target.unsqueeze(1)) < 0).all(), "not after so few"
        env.advance(kinds[sequences[:, place]].unsqueeze(1))
    found = env.state.known.gather(1, env.state.target.unsqueeze(1)).squeeze(1) == env.state.truth
    assert found.sum() == 1
    way = chain(takes.tolist(), int(start), int(env.state.target[0]))
    assert kinds[sequences[found][0]].tolist() == way[1:]


def test_the_planner_needs_no_call_too_many_and_exploring_does_not_suffice():
    result = evaluate(game(512), {name: make() for name, make in TOOL_CHAIN.agents.items()}, seed=3)
    planner, explorer = result.records["planner"], result.records["explorer"]
    assert planner.grades["grade"].eq(1).all()
    assert planner.outcomes["calls"].eq(planner.outcomes["calls_needed"]).all()
    assert 0.2 < explorer.grades["grade"].mean() < 0.95


def test_calls_that_cannot_be_cost_and_the_last_step_is_for_an_answer():
    env = game(2, level=torch.tensor([1, 2]))
    start = env.state.start
    target = env.state.target
    budget = (env.state.level + 1).tolist()
    for step in range(max(budget)):
        late = torch.tensor(budget) <= step
        env.advance(torch.where(late, ANSWER, start).unsqueeze(1))  # no tool gives the start
        assert not env.state.valid.any()
    assert env.rows.done.tolist() == [True, False]
    env.advance(target.unsqueeze(1))
    assert env.rows.done.all() and (env.state.known.gather(1, target.unsqueeze(1)) < 0).all()
    assert env.grade().tolist() == [0, 0]


def test_it_is_played_in_words_with_calls_in_any_notation():
    world = vecenv.make_interaction(TOOL_CHAIN, 1, level=2)
    dialogue = Dialogue(world)
    (turn,) = dialogue.begin([0], [Episode(seed=4, index=0)])
    state = world.env.state
    takes, known = state.takes[0].tolist(), state.known[0].tolist()
    way = chain(takes, int(state.start), int(state.target))
    assert f"Wanted: the {NOUNS[way[-1]]} of {NOUNS[way[0]]}-{known[way[0]]}" in turn.message
    first = f"{NOUNS[way[1]]}-{returned(int(state.salt), way[1], known[way[0]])}"
    (turn,) = dialogue.answer([0], [f"<think>so</think>{NOUNS[way[1]]}_of({NOUNS[way[0]]}-{known[way[0]]})"])
    assert f"Found: {first}\nCalls left: 2" in turn.message
    (turn,) = dialogue.answer([0], [f'{{"name": "{NOUNS[way[2]]}_of", "arguments": {{"of": "{first}"}}}}'])
    answer = f"{NOUNS[way[2]]}-{int(state.truth)}"
    assert answer in turn.message
    (turn,) = dialogue.answer([0], [answer])
    assert turn.done and turn.grade == 1 and turn.reward == 1


def test_its_tools_reply_as_steps_do_and_no_more_often():
    world = vecenv.make_interaction(TOOL_CHAIN, 1, level=2)
    dialogue = Dialogue(world, TextRules(tools=("all",), turns=9))
    dialogue.begin([0], [Episode(seed=4, index=0)])
    state = world.env.state
    takes, known, salt = state.takes[0].tolist(), state.known[0].tolist(), int(state.salt)
    way = chain(takes, int(state.start), int(state.target))

    def told(gives: int, kind: int, value: int) -> str:
        call = ToolCall(f"{NOUNS[gives]}_of", {"of": f"{NOUNS[kind]}-{value}"})
        return dialogue.answer([0], [call])[0].message

    first = returned(salt, way[1], known[way[0]])
    assert told(way[1], way[0], known[way[0]]) == f"{NOUNS[way[1]]}-{first}"
    assert told(way[0], way[1], 1) == f"Error: there is no tool {NOUNS[way[0]]}_of here"
    assert told(way[2], way[0], 1) == f"Error: {NOUNS[way[2]]}_of takes a thing such as {NOUNS[way[1]]}-7"
    assert told(way[2], way[1], first) == "Failure: no call is left", "of two and one to spare"
    assert int(world.env.state.steps) == 0
    (turn,) = dialogue.answer([0], [f"{NOUNS[way[2]]}-{int(state.truth)}"])
    assert turn.done and turn.grade == 1


LEVEL, ROWS = 2, 56
CALLS = TextRules(grade=0.0, steps=1.0, tools=("all",), turns=LEVEL + 2)


def played(rules, first=0, **worlds):
    def made():
        tools = torch.arange(3, 10).repeat(ROWS // 7)
        return vecenv.make_interaction(TOOL_CHAIN, ROWS, level=LEVEL, params={"num_tools": tools})

    agents = {name: make() for name, make in TOOL_CHAIN.agents.items()}
    worlds = {name: change(made()) for name, change in worlds.items()}
    episodes = [Episode(3, first + row) for row in range(ROWS)]
    return evaluate_conversations(worlds.pop("world", made()), agents, episodes, rules, **worlds)


def test_scores_by_number_of_tools_and_failures_of_its_tools_are_outcomes():
    sound, failing = played(CALLS), played(replace(CALLS, tools=("all", "fails:any:0.3")))
    planner, explorer = sound.by_tools["planner"], sound.by_tools["explorer"]
    assert set(planner) == set(range(3, 10)) and all(interval.mean == 1 for interval in planner.values())
    assert explorer[3].mean > explorer[9].mean + 0.2
    told = failing.records["planner"].outcomes
    assert told["tool_recovered"].sum() > 5 and told["tool_unrecovered"].sum() > 0
    assert torch.equal(told["tool_recovered"] + told["tool_unrecovered"], told["tool_failures"])
    solved = failing.records["planner"].grades["grade"] == 1
    assert told["tool_unrecovered"][~solved].sum() > told["tool_unrecovered"][solved].sum()
    assert 0.3 < solved.double().mean() < 0.95


def test_the_gap_between_its_tools_and_a_recording_of_them_is_an_outcome(tmp_path):
    gaps = {}
    for first in (0, 5_000):
        recording = Recording(ChainTools(ToolChain(ToolChainConfig()), ["all"]).tools, miss="nearest")
        played(CALLS, first, world=partial(recorded, recording=recording))
        found = played(CALLS, mocked=partial(mocked_by, recording))
        gaps[first] = found.to_json()["gap"]["planner"]["mean"]
        assert any("less that with their mocks" in note for note in found.notes())
    assert gaps[0] == 0 and gaps[5_000] > 0.9, "recorded in these episodes, and in others"
    recording.write(tmp_path / "seen.jsonl")
    by_word = played(replace(CALLS, tools=("all", f"mock:{tmp_path / 'seen.jsonl'}")))
    assert by_word.gap == found.gap and torch.equal(by_word.mocked["explorer"], found.mocked["explorer"])


def mocked_by(recording, world):
    return with_sources(world, recording)


@pytest.mark.parametrize(
    ("said", "fault"),
    [
        ("poem_of(customer-1)", "there is no kind 'poem'"),
        ("{start}_of(customer-1)", "there is no tool {start}_of"),
        ("{target}_of({target}-1)", "{target}_of takes a thing such as"),
        ("{start}-1", "the answer is a thing such as {target}-7"),
        ("I do not know", "is no call such as"),
        ("{target}-1\n{target}-2", "one line is wanted"),
        ('{{"name": "{target}_of", "arguments": {{}}}}', "takes one argument"),
    ],
)
def test_what_is_no_call_is_told(said, fault):
    env = make_spoken(TOOL_CHAIN, 1)
    names = {"start": NOUNS[env.state.start[0]], "target": NOUNS[env.state.target[0]]}
    language = env.scenario.text.languages(env.state)[0]
    with pytest.raises(AnswerFault) as told:
        language.read(said.format(**names))
    assert fault.format(**names) in str(told.value)
