"""Whatever is called: the same alone and among others, no exception; families for any task; draws and failures."""

import gc
import pickle
from functools import partial

import pytest

from tests.guess_number import GUESS_NUMBER, GuessNumber, Hints
from vecenv.registry import make_interaction
from vecenv.sandbox.jail import lacking
from vecenv.sandbox.job import Job
from vecenv.testing import ConformanceFault, check_tools
from vecenv.text.tool_calls import FAULT, CallName, ToolCall
from vecenv.tools.python import PythonTools
from vecenv.tools.sql import MOST_ROWS, SqlTools
from vecenv.tools.tool_set import tool

TIERS = partial(make_interaction, "multi_stock_3", compile=False, market_options={"num_paths": 3, "num_days": 330})
MARKET = partial(make_interaction, "agent_market", compile=False, max_ticks=300, num_noise=20)
GUESS = partial(make_interaction, GUESS_NUMBER)
CHAIN = partial(make_interaction, "tool_chain", compile=False)
SHOP = partial(make_interaction, "shop", compile=False, products=100)
FAILS = "fails:any:0.4"

TEXTS = ("INFY", "tcs", "RELIANCE", "rsi_14", "trend_state", "macd", "BUY INFY 0.3", "SELL TCS", "1 + 1", "select 1")
OTHERS = {CHAIN: ("customer-7", "order-17", "truck-999", "city-3"), SHOP: ("buy now", "p00003", "a warm kettle")}
CASES = [(TIERS, ("all",), 800), (MARKET, ("all",), 300), (GUESS, ("all", "sql"), 500), (TIERS, ("all", FAILS), 400)]
CASES += [(CHAIN, ("all",), 300), (CHAIN, ("all", FAILS), 200), (SHOP, ("all",), 200)]


@pytest.mark.parametrize(("make", "names", "calls"), CASES)
def test_calls_are_answered_alone_as_among_others(make, names, calls):
    assert check_tools(make, names, calls, OTHERS.get(make, TEXTS)) >= calls / 20


@pytest.mark.nightly
@pytest.mark.parametrize(("make", "names", "calls"), CASES)
def test_many_calls_are_answered(make, names, calls):
    check_tools(make, names, 50 * calls, OTHERS.get(make, TEXTS), seed=1)


class Crosswise(Hints):
    @tool("hints", "whether another row's number is odd")
    def is_odd(self, callers):
        return [str(sum(self.numbers[row] for row in callers.state))] * len(callers.state)


class Failing(Hints):
    @tool("hints", "one divided by x", {"x": float})
    def divided(self, callers, x):
        return [str(1 / value) for value in x.tolist() if value]


@pytest.mark.parametrize(
    ("tools", "told"), [(Crosswise, "is answered otherwise alone"), (Failing, "raises ValueError")]
)
def test_what_sees_other_rows_or_raises_is_found(tools, told, monkeypatch):
    monkeypatch.setattr(GuessNumber, "tools", lambda world, names: tools(names, world.numbers))
    with pytest.raises(ConformanceFault, match=told):
        check_tools(GUESS)


def asked(tools, statement: str, row: int = 0, seed: int = 1, number: int = 1) -> str:
    return tools.results(
        [row], [ToolCall("sql", {"statement": statement}, at=CallName(row, seed, 0, 0, number))], None
    )[0]


ENDLESS = "with recursive c(n) as (select 1 union all select n + 1 from c) select "


def test_a_database_is_the_rows_own_for_an_episode_and_within_limits(tmp_path):
    tools = SqlTools(["all"])
    assert asked(tools, "create table a (x, y)") == "done"
    assert asked(tools, "insert into a values (1, 'b'), (2, null)") == "done, 2 rows changed"
    assert asked(tools, "select * from a where x >= 1") == "x | y\n1 | b\n2 | NULL"
    for other in ({"row": 1}, {"seed": 2}, {"number": 0}):
        assert asked(tools, "select * from a", **other) == "Error: no such table: a"
    assert asked(tools, "select * from a") == "Error: no such table: a"
    for statement, told in (
        (ENDLESS + "count(*) from c", "it takes more than"),
        (f"attach '{tmp_path}/x' as x", "not authorized"),
        (f"vacuum into '{tmp_path}/x'", "denied"),
        ("pragma page_size", "not authorized"),
        ("select random()", "not authorized"),
        ("select date('now')", "not authorized"),
        ("select current_timestamp", "not authorized"),
        ("select zeroblob(100000)", "too big"),
        ("select 1; select 2", "one statement"),
        ("selec", "syntax error"),
        ("select '\ud800'", "surrogates"),
    ):
        assert asked(tools, statement).startswith(FAULT) and told in asked(tools, statement)
    assert list(tmp_path.iterdir()) == []
    assert asked(tools, ENDLESS + "n from c").endswith(f"\n50\nand more than these {MOST_ROWS} rows")


@pytest.mark.skipif(bool(lacking()), reason="the sandbox has not all its layers here")
def test_programs_run_in_the_sandbox_for_all_rows_of_a_step():
    tools = GUESS(1).tools(["hints", "python"])
    assert tools.offered == ("is_odd", "python")
    programs = ("print(6 * 7)", "print('a')\n1 / 0", "x = 1", "while True: pass")
    told = tools.results(range(4), [ToolCall("python", {"program": text}) for text in programs], None)
    assert told == [
        "42",
        "a\nthe program failed: ZeroDivisionError: division by zero",
        "it printed nothing",
        "the program failed: it took more than 2 s",
    ]


@pytest.mark.skipif(bool(lacking()), reason="the sandbox has not all its layers here")
def test_a_sandbox_ends_with_its_tools_and_a_copy_has_its_own():
    tools = PythonTools(["all"])
    sandbox, copy = tools._sandbox, pickle.loads(pickle.dumps(tools))
    assert copy.results([0], [ToolCall("python", {"program": "print(6 * 7)"})], None) == ["42"]
    del tools
    gc.collect()
    with pytest.raises(RuntimeError, match="shutdown"):
        sandbox.submit(Job("1"))
    assert copy.results([0], [ToolCall("python", {"program": "print(1)"})], None) == ["1"]


def test_an_episode_that_is_played_again_begins_with_another_database():
    tools = SqlTools(["all"])

    def told(number: int, statement: str) -> str:
        call = ToolCall("sql" if statement else "nothing", {"statement": statement}, at=CallName(0, 1, 2, 0, number))
        return tools.results([0], [call], None)[0]

    assert told(0, "create table kept (n)") == "done" and told(1, "select count(*) from kept").endswith("0")
    told(0, "")
    assert "no such table" in told(1, "select count(*) from kept")


@pytest.mark.parametrize("default", ["current_timestamp", "(random())", "(datetime('now'))", "(randomblob(4))"])
def test_defaults_of_columns_tell_nothing_of_time_or_chance(default):
    tools, told = SqlTools(["all"]), ""
    for number, text in enumerate((f"create table a (n, t default {default})", "insert into a (n) values (1)")):
        call = ToolCall("sql", {"statement": text}, at=CallName(0, 1, 2, 0, number))
        (told,) = tools.results([0], [call], None)
    assert told.startswith(FAULT)
