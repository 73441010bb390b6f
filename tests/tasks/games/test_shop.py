"""The shop's tensors are its rules in plain Python; its pages, answers, catalogues and agents are as they are told."""

import json
from pathlib import Path

import pytest
import torch

import vecenv
from tests.tasks.games.shop_oracle import Index, Session
from vecenv.core.random import random_action
from vecenv.registry import make_spoken, task_named
from vecenv.tasks.games.shop.catalogue import NONE, UNKNOWN, Catalogue
from vecenv.tasks.games.shop.config import ShopConfig
from vecenv.tasks.games.shop.products import generated, paraphrases, read_products
from vecenv.tasks.games.shop.scenario import NUM_FORMS, Page
from vecenv.tasks.games.shop.search import best, scores
from vecenv.tasks.games.shop.text import FORMS, ShopTools
from vecenv.tasks.games.shop.words import canonical, words
from vecenv.testing import check_task
from vecenv.text.dialogue import Dialogue, TextRules
from vecenv.text.door import TextDoor
from vecenv.text.interaction import Episode
from vecenv.text.tool_calls import Said, ToolCall
from vecenv.tools.mocks import RecordedTools
from vecenv.tools.recording import Recording
from vecenv.tools.schemas import mcp_schema, openai_schema
from vecenv.tools.sourced import SourcedTools

SMALL = {"products": 150, "max_steps": 12}
PAGES = [page.name.lower() for page in Page]


def documents(products):
    return [
        words(
            " , ".join(
                [one.title, one.type, one.description, *(value for row in one.options.values() for value in row)]
            )
        )
        for one in products
    ]


def sessions(env):
    """Return an oracle's session for each row, from what was drawn for it."""
    shop, state = env.scenario, env.state
    found, index = shop.catalogue, Index(documents(shop.catalogue.products))
    made = []
    for row in range(env.num_envs):
        wanted = [found.attributes[number] for number in state.wanted[row].tolist() if number >= 0]
        options = [found.options[number] for number in state.wanted_options[row].tolist() if number >= 0]
        given = (int(state.target[row]), wanted, options, int(state.limit[row]))
        made.append(Session(found.products, index, words, *given, values=shop.values))
    return made


def drawn_actions(env):
    """Return random actions, mostly of what can be clicked, with words of the instruction and others."""
    seen, drawn = env.observations(), random_action(env.scenario.action_spec, env.episode_keys, env.rows.elapsed)
    legal = task_named("shop").agents["random"]().act(env)
    pick = (drawn[:, :1] % 5 == 0) | ~seen["clickable"].any(-1, keepdim=True)
    return torch.where(
        pick, drawn, torch.where(drawn[:, 1:2] % 3 == 0, torch.cat([legal[:, :1], drawn[:, 1:]], 1), legal)
    )


def compared(env, oracles, steps):
    """Step rows and their oracles side by side; return how many pages were reached."""
    known = ["", "qqqq", *env.scenario.catalogue.vocabulary]
    reached = set()
    for _ in range(steps):
        action, over = drawn_actions(env), env.rows.done.tolist()
        reward = env.advance(action).tolist()
        state, can = env.state, env.observations()["clickable"]
        worth = env.engine.bound().info(env.rows)["worth"].tolist()
        for row, oracle in enumerate(oracles):
            if over[row]:
                continue
            choice, *query = action[row].tolist()
            earned = oracle.step(choice, [known[word] for word in query if word not in (NONE, UNKNOWN)])
            assert PAGES[int(state.page[row])] == oracle.page
            assert reward[row] == pytest.approx(earned, abs=1e-6)
            assert worth[row] == pytest.approx(0.0 if oracle.page in PAGES[:2] else oracle.worth(), abs=1e-6)
            assert set(can[row].nonzero().flatten().tolist()) == oracle.can()
            assert [number for number in state.results[row].tolist() if number >= 0] == oracle.found
            assert (int(state.item[row]), int(state.results_page[row])) == (oracle.item, oracle.at)
            chosen = {axis: place for axis, place in enumerate(state.chosen[row].tolist()) if place >= 0}
            assert chosen == oracle.chosen
            reached.add(oracle.page)
        if bool(env.rows.done.all()):
            break
    return reached


def test_the_tensors_are_the_rules():
    env = vecenv.make("shop", 64, seed=1, compile=False, **SMALL)
    assert compared(env, sessions(env), SMALL["max_steps"]) == {*PAGES}
    assert bool(env.rows.terminated.any())
    assert bool(env.rows.truncated.any())


@pytest.mark.nightly
def test_a_hundred_thousand_transitions():
    for seed in range(8):
        env = vecenv.make("shop", 1_024, seed=seed, compile=False, products=300, max_steps=40)
        compared(env, sessions(env), 40)


def test_instructions_are_drawn_of_their_targets():
    env = vecenv.make("shop", 512, seed=2, compile=False, **SMALL)
    prices = [oracle.limit / oracle.products[oracle.target].price for oracle in sessions(env)]
    assert min(prices) > 1.0
    for oracle in sessions(env):
        target = oracle.products[oracle.target]
        assert 1 <= len(oracle.wanted) <= 3
        assert {*oracle.wanted} <= {*target.attributes}
        assert [name for name, _ in oracle.wanted_options] == [*target.options]
        assert all(value in target.options[name] for name, value in oracle.wanted_options)
        assert oracle.limit % 100 == 0
        assert oracle.limit <= 1.6 * target.price + 100
    assert {len(oracle.wanted) for oracle in sessions(env)} == {1, 2, 3}


def test_both_forms_of_the_search_are_bm25():
    products = generated(200, 4)
    catalogue = Catalogue(products, ShopConfig(saturation=1.5, length_weight=0.75))
    lists = [catalogue.tensors[name] for name in ("first", "document", "impact")]
    queries = torch.randint(0, catalogue.num_words, (40, 8), generator=torch.Generator().manual_seed(0))
    queries[0], queries[1], queries[2, 1:] = UNKNOWN, queries[1, 0], NONE
    plain = best(scores(queries, *lists, 200), 50)
    native = torch.ops.vecenv.shop_search(queries, torch.arange(40) != 5, *lists, 200, 50)
    assert bool((native[5] == -1).all())
    index, known = Index(documents(products), 1.5, 0.75), ["", "qqqq", *catalogue.vocabulary]
    for row, query in enumerate(queries.tolist()):
        told = [number for number in plain[row].tolist() if number >= 0]
        assert told == index.search([known[word] for word in query if word > UNKNOWN])
        assert row == 5 or torch.equal(native[row], plain[row])


def test_a_search_for_more_than_there_is():
    catalogue = Catalogue(generated(12, 0), ShopConfig())
    lists = [catalogue.tensors[name] for name in ("first", "document", "impact")]
    found = torch.ops.vecenv.shop_search(torch.full((1, 8), 2), torch.tensor([True]), *lists, 12, 50)[0]
    assert 1 <= (found >= 0).sum() <= 12
    assert torch.equal(found, best(scores(torch.full((1, 8), 2), *lists, 12), 50)[0])


def test_the_first_products_do_not_depend_on_the_number():
    assert generated(30, 1)[:10] == generated(10, 1)
    assert generated(10, 1) != generated(10, 2)
    assert len({product.id for product in generated(500, 0)}) == 500


def test_hindsight_is_the_ceiling_and_others_are_below():
    grades = {}
    for name in ("random", "first_match", "hindsight"):
        env = vecenv.make("shop", 128, seed=3, compile=False, products=600, wording="paraphrase")
        agent = task_named("shop").agents[name]()
        while not bool(env.rows.done.all()):
            env.advance(agent.act(env))
        grades[name] = float(env.grade().mean())
    assert grades["hindsight"] == 1.0
    assert 0.0 < grades["random"] < grades["first_match"] < 0.9


def test_conforms():
    check_task("shop", steps=6, compiled=False, **SMALL)


def played(env, row, *answers):
    """Give a row's answers, and return what it is shown last, and whether each was valid."""
    door, valid = TextDoor(env), []
    for answer in answers:
        action, known = door.parse([answer], [row])
        every = action.new_zeros(env.num_envs, action.shape[1])
        every[row] = action[0]
        env.advance(every, torch.arange(env.num_envs) == row)
        valid.append(bool(known))
    return door.render([row])[0], valid


SHELF = [
    {"id": "A-1", "title": "Für immer red kettle", "category": "Home › Kitchen", "type": "kettle", "price": 20,
     "attributes": ["cordless"], "options": {"colour": ["red", "next"], "trim": ["red", "1,000 ml"]}},
    {"id": "b 2", "title": "Plain mug", "category": "Home › Kitchen › Mugs", "type": "mug", "price": 4.5,
     "attributes": [], "options": {}, "description": "It holds tea."},
]  # fmt: skip


def shelf(tmp_path, *lines):
    path = tmp_path / "shelf.jsonl"
    path.write_bytes(b"\n".join(line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines))
    return path


def test_a_purchase_in_words(tmp_path):
    env = make_spoken("shop", 8, catalogue=str(shelf(tmp_path, *SHELF)))
    row = int((env.state.target == 0).nonzero()[0])
    first = TextDoor(env).render([row])[0]
    assert "Find me kettle that is cordless, colour: " in first
    assert first.endswith("Actions (50 left): search[<content>]")
    shown, _ = played(env, row, "Search[FUR, zebra unicorn]")
    assert "Results for 'fur', page 1 of 1 (1 product):\n[A-1] Für immer red kettle - $20.00\nLeft out" in shown
    assert "2 of your words" in shown
    shown, valid = played(env, row, "click[b 2]", "search[mug]", "Thought: that one; it fits\nAction: click[a-1]")
    assert valid == [False, True, True]
    names = "click[colour: red], click[colour: next], click[trim: red], click[1,000 ml]"
    assert shown.endswith(f"click[description], click[attributes], click[buy now], {names}")
    assert "search bar" not in shown
    shown, valid = played(env, row, "click[red]", "click[Colour Next]", "click[1000 ML]", "search[mug]")
    assert valid == [False, True, True, True]
    assert "Chosen: colour next, trim 1,000 ml" in shown
    assert "there is no search bar" in shown
    shown, valid = played(env, row, "click[attributes]")
    assert "- cordless" in shown
    assert shown.endswith("click[back to search], click[< prev]")
    shown, valid = played(env, row, "click[buy now]", "click[< prev]", "click[buy now]")
    assert valid == [False, True, True]
    assert "You have bought Für immer red kettle, colour next, trim 1,000 ml for $20.00." in shown
    assert bool(env.rows.terminated[row])
    assert float(env.grade()[row]) >= 0.5


def test_a_word_that_no_product_has_is_written_as_none_that_a_product_has(tmp_path):
    words = make_spoken("shop", 1, catalogue=str(shelf(tmp_path, SHELF[0] | {"title": "qqqq"}))).scenario.text.words
    assert words.query("qqqq")[0] > UNKNOWN
    written = words.written([1, UNKNOWN, *[NONE] * 7], None)
    assert words.query(written[len("search[") : -1]) == [UNKNOWN, *[NONE] * 7]


def test_a_type_of_another_shelf_earns_less(tmp_path):
    other = SHELF[1] | {"id": "c", "title": "Red kettle cosy big warm soft", "category": "Garden", "type": "cosy"}
    env = make_spoken("shop", 8, catalogue=str(shelf(tmp_path, SHELF[0], other, SHELF[1])))
    row = int((env.state.target == 1).nonzero()[0])
    # One of five words of the title: half of the price alone, of one thing asked for.
    played(env, row, "search[kettle]", "click[A-1]", "click[buy now]")
    affordable = int(env.state.limit[row]) >= 2_000
    assert float(env.grade()[row]) == (0.5 if affordable else 0.0)


def test_its_actions_are_tools_whose_calls_are_answers():
    def begun(*words):
        world = vecenv.make_interaction("shop", 1, compile=False, **SMALL)
        dialogue = Dialogue(world, TextRules(tools=words))
        dialogue.begin([0], [Episode(2, 5)])
        return world, dialogue

    (world, called), (_, written), (refused, failing) = begun("all"), begun(), begun("all", "fails:search:timeout:1")
    product = world.env.scenario.catalogue.products[int(world.env.state.target)]
    script = [("search", "query", product.title), ("click", "name", product.id), ("click", "name", "moon"),
              ("click", "name", "description"), ("click", "name", "< prev"), ("click", "name", "buy now")]  # fmt: skip
    for name, argument, value in script:
        (turn,) = called.answer([0], [json.dumps({"name": name, "arguments": {argument: value}})])
        assert turn == written.answer([0], [f"{name}[{value}]"])[0]
    assert turn.done and turn.grade >= 0.5
    assert "A call of search or click is your answer." in called.instructions([0])[0]
    form = openai_schema(ShopTools.tools["click"])["function"]["parameters"]
    assert form["required"] == ["name"] and not mcp_schema(ShopTools.tools["click"])["annotations"]["readOnlyHint"]
    calls = [ToolCall("search", {"query": "kettle"}), ToolCall("search"), ToolCall("calculator", {"expression": "2"})]
    told = [failing.answer([0], [call])[0].message for call in calls]
    assert told == ["Failure: the tool did not answer within 30 s", "Error: search needs query", "2"]
    assert int(refused.env.state.steps) == 0
    failing.answer([0], ["search[kettle]"])
    counted = failing.answer([0], [ToolCall("click", {"name": "moon"})])[0].outcomes
    assert (counted["tool_calls"], counted["tool_failures"]) == (3, 1), "a wrong call is the agent's own fault"
    # What acts is the world's own: it is refused or carried out as it is, and has neither recording nor mock.
    (_, odd), (_, sound) = begun("all", "fails:search:malformed:1"), begun("all")
    assert odd.answer([0], calls[:1])[0].message == sound.answer([0], calls[:1])[0].message
    recording = Recording(ShopTools(["all"]).tools)
    real = RecordedTools(ShopTools(["all"]), recording)
    assert isinstance(real.results([0], calls[:1], None)[0], Said) and not any(recording.known.values())
    assert isinstance(SourcedTools(["all"], [recording], real.real).results([0], calls[:1], None)[0], Said)


def test_invalid_answers_say_why():
    env = make_spoken("shop", 2, **SMALL)
    door = TextDoor(env)
    for text, why in {
        "buy it": "neither search",
        "search[]": "no word",
        "search[the of]": "no word",
        "click[buy now]": "cannot be clicked on this page",
        "search[a kettle]\nsearch[b]": "one action",
    }.items():
        _, valid = door.parse([text], [0])
        assert not bool(valid)
        assert why in door.reasons([text], valid, [0])[0]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ({"id": "x"}, "title, category, type, price, attributes, options must be there"),
        (SHELF[1] | {"price": "4"}, "price must be a number of dollars"),
        (SHELF[1] | {"price": True}, "price must be"),
        (SHELF[1] | {"price": 0}, "price must be"),
        (SHELF[1] | {"price": 10**400}, "price must be"),
        (SHELF[1] | {"options": {"Size": ["a"], "size ": ["b"]}}, "options must be of different texts"),
        (SHELF[1] | {"title": "  "}, "title must not be empty"),
        (SHELF[1] | {"title": "杯子"}, "title '杯子' has no word"),
        (SHELF[1] | {"title": "x" * 201}, "title must be at most 200"),
        (SHELF[1] | {"id": "A-1"}, "id 'A-1' is that of line 1 already"),
        (SHELF[1] | {"id": "a]"}, "cannot be clicked"),
        (SHELF[1] | {"id": "Next"}, "id 'Next' is the name of a button"),
        (SHELF[1] | {"options": {"buy": ["now"]}}, "options: buy: now is also the name of a button or"),
        (SHELF[1] | {"options": {"a": ["b c"], "a b": ["c"]}}, "options: a b: c is also the name"),
        (SHELF[1] | {"options": {"a": ["b"], "c": ["a b"]}}, "options: a: b is also the name"),
        (SHELF[1] | {"colour": 1}, "unknown field 'colour'"),
        (SHELF[1] | {"attributes": "red"}, "attributes must be a list"),
        (SHELF[1] | {"attributes": ["a", "A"]}, "attributes must be of different texts"),
        (SHELF[1] | {"options": {"size": []}}, "options.size must be a list of 1 to 32"),
        (SHELF[1] | {"options": {str(n): ["a"] for n in range(5)}}, "options must be an object of at most 4"),
        (b"[1]", "it is no JSON object"),
        (b'{"id": "a', "it is not JSON"),
        (b"[" * 9_000, "it is not JSON: it is nested deeper than 100 levels"),
        (b"\xff\xfe", "it is not UTF-8"),
        (b'{"title": "' + b"x" * 10_000_000 + b'"}', "it is longer than 65,536 bytes"),
        (b'{"price": NaN}', "must be there"),
    ],
)  # fmt: skip
def test_faults_of_a_catalogue_are_named(tmp_path, line, why):
    path = shelf(tmp_path, SHELF[0], line)
    with pytest.raises(ValueError, match=f"shelf.jsonl: line 2: .*{why}".replace("[", r"\[")):
        read_products(path)


def test_a_catalogue_without_products(tmp_path):
    with pytest.raises(ValueError, match="there is no product in it"):
        read_products(shelf(tmp_path, b"\n\n"))
    with pytest.raises(ValueError, match="products must be"):
        ShopConfig(products=5)


def test_no_row_has_more_actions_than_the_setting():
    with pytest.raises(ValueError, match="max_steps must be at most the setting, 12, in every row"):
        vecenv.make("shop", 2, compile=False, params={"max_steps": torch.tensor([5, 13])}, **SMALL)
    env = vecenv.make("shop", 2, compile=False, params={"max_steps": torch.tensor([5, 12])}, **SMALL)
    told = TextDoor(env).instructions([0, 1])
    assert "You have 5 actions" in told[0] and "You have 12 actions" in told[1]


def test_own_words_are_consistent():
    assert len(FORMS) == NUM_FORMS
    # A paraphrase names nothing that is searched for by its word.
    assert not [name for name, other in paraphrases().items() if {*words(name)} & {*words(other)}]
    assert canonical("  Größe: 1,000 ml! ") == "GROSSE 1000 ML"
    assert words("A Café, 1,000 mAh (1.7L)") == ["cafe", "1000", "mah", "1.7", "l"]
    lines = (Path(read_products.__code__.co_filename).parent / "words.jsonl").read_text()
    assert lines.isascii()
