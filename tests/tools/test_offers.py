"""Offers by group and by draw, and failures at their rates, equal for all members of a group."""

from collections import Counter

import pytest

from tests.guess_number import GUESS_NUMBER
from vecenv.learn.conversations import evaluate_conversations
from vecenv.registry import make_interaction
from vecenv.tasks.tiers.tools import TierTools
from vecenv.text.dialogue import Dialogue, TextRules
from vecenv.text.interaction import Episode
from vecenv.text.tool_calls import FAILURE, FAULT, CallName, ToolCall
from vecenv.tools.failing import KINDS, OUTCOMES, PATIENCE, REFUSED, altered, failure_rates
from vecenv.tools.offers import in_training
from vecenv.tools.tool_set import ToolSet, tool

ALL_TOOLS = ("price_history", "indicator", "position", "what_if", "calculator")


class Clock(ToolSet):
    """A tool whose reply to the same question is another each time."""

    def __init__(self, *words):
        super().__init__(("all", *words))
        self.calls = 0

    @tool("time", "what time it is; zone", {"zone": str}, {"zone": "here"}, seconds=2.0)
    def now(self, callers, zone):
        self.calls += 1
        return [
            f"{self.calls} hours and {row} minutes in {each}" for row, each in zip(callers.state, zone, strict=True)
        ]

    @tool("time", "nothing")
    def nothing(self, callers):
        return ["nothing"] * len(callers.state)


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("all",), ALL_TOOLS),
        (("single:position",), ("position",)),
        (("family:account", "calculator"), ("position", "what_if", "calculator")),
        (("all", "without:market", "without:single:what_if"), ("position", "calculator")),
        (("all", "held:what_if"), ALL_TOOLS),
        (in_training(("all", "held:what_if")), tuple(name for name in ALL_TOOLS if name != "what_if")),
        (("all", "sql"), (*ALL_TOOLS, "sql")),
        (("family:sql",), ("sql",)),
    ],
)
def test_groups_by_name(words, offered):
    assert TierTools(None, None, words).offered == offered


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("single:account",), "unknown tools single:account; there are price_history"),
        (("family:position",), "unknown tools family:position"),
        (("all", "held:moon"), "unknown tools moon"),
        (("position", "without:account"), "offer none"),
        (("all", "drawn:6"), "write drawn:3 or drawn:1-3, of the 5 tools"),
        (("all", "drawn:2-1"), "write drawn:3"),
        (("all", "drawn:"), "write drawn:3"),
        (("all", "drawn:1", "drawn:2"), "tools are drawn once, but there are drawn:1, drawn:2"),
        (("all", "mock:/none.jsonl"), "/none.jsonl cannot be read: No such file"),
        (("all", "mock:a", "mock:b"), "tools have one mock, but there are a, b"),
        (("all", "fails:moon:0.1"), "write fails:KIND:0.1"),
        (("all", "fails:moon:empty:0.1"), "write fails:KIND:0.1"),
        (("all", "fails:empty"), "write fails:KIND:0.1"),
        (("all", "fails:empty:2"), "a probability is a number from 0 to 1"),
        (("all", "fails:empty:x"), "a probability is a number from 0 to 1"),
        (("all", "fails:empty:0.6", "fails:stale:0.6"), "exceed 1 together"),
    ],
)
def test_words_that_are_none_are_refused(words, told):
    with pytest.raises(ValueError, match=told):
        TierTools(None, None, words)


def test_two_tools_of_one_name_are_refused():
    class Own(ToolSet):
        @tool("mine", "says nothing")
        def sql(self, callers):
            return [""] * len(callers.state)

    assert Own(["sql"]).offered == ("sql",)
    with pytest.raises(ValueError, match="two tools are called 'sql'"):
        Own(["all", "family:sql"])


def test_draws_are_of_the_episode_and_of_all_sizes():
    tools = TierTools(None, None, ("all", "drawn:1-3"))
    names = [CallName(row, 7, row // 2, row % 2) for row in range(2000)]
    offers = tools._offers.of(names)
    assert offers == [TierTools(None, None, ("all", "drawn:1-3"))._offers.of([name])[0] for name in names]
    assert offers[3] == tools._offers.of([names[3]._replace(row=99, number=5)])[0]
    sizes, each = Counter(map(len, offers)), Counter(name for offer in offers for name in offer)
    assert all(abs(sizes[size] - 2000 / 3) < 5 * (2000 * 2 / 9) ** 0.5 for size in (1, 2, 3))
    assert all(abs(each[name] - 800) < 5 * 480**0.5 for name in ALL_TOOLS)
    for offer, text in zip(offers, tools.instructions_of("json", 3, names), strict=True):
        assert [name for name in ALL_TOOLS if f"\n  {name}: " in text] == list(offer)
    with pytest.raises(ValueError, match="need calls that a Dialogue names"):
        tools.results([0], [ToolCall("position")], None)


def test_failures_come_at_their_rates_and_alike_for_a_group():
    words = ("fails:now:timeout:0.1", "fails:time:empty:0.2", "fails:latency:0.05", "fails:nothing:empty:0")
    tools, rows, told = Clock(*words), range(64), []
    for number in range(60):
        calls = [ToolCall("now", at=CallName(row, 3, row // 2, 0, number)) for row in rows]
        told.append(tools.results(rows, calls, None))
    assert all(
        replies[row].startswith(FAILURE) == replies[row + 1].startswith(FAILURE)
        for replies in told
        for row in rows[::2]
    )
    kinds = Counter(
        reply if reply.startswith(FAILURE) or reply == "(empty)" else "" for replies in told for reply in replies
    )
    half = 64 * 60 / 2
    for share, count in ((0.1, kinds["Failure: the tool did not answer within 30 s"]), (0.2, kinds["(empty)"])):
        assert abs(count / 2 - share * half) < 4.5 * (share * (1 - share) * half) ** 0.5
    counted = [tools.counted(CallName(row, 3, row // 2, 0, 60)) for row in rows]
    assert (
        sum(each["tool_failures"] for each in counted)
        == kinds["(empty)"] + kinds["Failure: the tool did not answer within 30 s"]
    )
    assert all(each["tool_calls"] == 60 and each["tool_unrecovered"] <= 5 for each in counted)
    quiet = Clock(*words).results([0], [ToolCall("nothing", at=CallName(0, 3, 0, 0, number)) for number in (0,)], None)
    assert quiet == ["nothing"]


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_what_it_says(kind):
    tools = Clock(f"fails:{kind}:1.0")

    def told(number, **arguments):
        return tools.results([5], [ToolCall("now", arguments, at=CallName(5, 3, 0, 0, number))], None)[0]

    first, second, wrong = told(0), told(1), told(2, zone=2.5)
    assert wrong == f"{FAULT}zone must be a text"
    counted = tools.counted(CallName(5, 3, 0, 0, 3))
    failures = {"stale": 1.0, "latency": 0.0}.get(kind, 2.0)
    assert counted["tool_failures"] == counted["tool_unrecovered"] == failures and counted["tool_calls"] == 2.0
    assert tools.counted(CallName(5, 3, 1, 0)) == dict.fromkeys(OUTCOMES, 0.0)
    assert tools.calls == (0 if kind in REFUSED else 2) and first.startswith(FAILURE) == (kind in REFUSED)
    seconds = {"timeout": 2 * PATIENCE, "rate_limit": 0.0, "permission": 0.0}.get(kind, 4.0)
    assert counted["tool_seconds"] > seconds if kind == "latency" else counted["tool_seconds"] == seconds
    if kind in ("stale", "latency"):
        other = "1 hours" if kind == "stale" else "2 hours"
        assert first == "1 hours and 5 minutes in here" and second == f"{other} and 5 minutes in here"


def test_replies_are_altered():
    reply = "1 hours and 5 minutes"
    assert altered("malformed", reply) == '{"reply": "1 hours a' and altered("partial", reply) == "1 hours and"
    assert altered("contradictory", reply) == f"{reply}\nAnother source: 3 hours and 11 minutes"
    assert altered("contradictory", "no") == "no\nAnother source: that is not so"
    assert failure_rates(Clock.tools, ["fails:any:0.9"])["now"] == pytest.approx(dict.fromkeys(KINDS, 0.1))


CALL = '{"name": "is_odd"}'


class Asks:
    """Calls the tool twice before each of its guesses."""

    def __init__(self):
        self.said = Counter()

    def answer(self, world, ids, shown):
        self.said.update(ids)
        return [str(self.said[row] // 3) if self.said[row] % 3 == 0 else CALL for row in ids]


def test_what_tools_did_is_among_the_outcomes_and_no_fault_of_the_agent():
    rules = TextRules(tools=("all", "drawn:1", "fails:timeout:0.5"), turns=3)
    dialogue = Dialogue(make_interaction(GUESS_NUMBER, 2), rules)
    assert dialogue.outcomes == {"tries": "count", "tools_offered": "count", **OUTCOMES}
    assert dialogue.begin([0, 1], [Episode(1, 4)] * 2)[0].outcomes == dict.fromkeys(dialogue.outcomes, 0.0) | {
        "tools_offered": 1.0
    }
    first, second = dialogue.answer([0, 1], [CALL] * 2)
    assert first == second and first.reward == 0 and first.outcomes is None and first.valid
    evaluation = evaluate_conversations(
        make_interaction(GUESS_NUMBER, 60), {"asks": Asks()}, [Episode(9, index) for index in range(60)], rules
    )
    told = {name: interval.mean for name, interval in evaluation.outcomes["asks"].items()}
    assert told["tool_calls"] == pytest.approx(2 * told["tries"])
    assert told["tool_failures"] == pytest.approx(told["tool_calls"] / 2, rel=0.2)
    assert told["tool_recovered"] + told["tool_unrecovered"] == pytest.approx(told["tool_failures"])
    assert evaluation.by_tools["asks"][1].mean == pytest.approx(evaluation.grades["asks"]["grade"].mean)
    assert evaluation.to_json()["by_tools_offered"]["asks"]["1"]["episodes"] == 60
