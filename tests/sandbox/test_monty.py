"""Two interpreters, one result: programs of the subset come out alike, all others are run by the jail as before."""

import random

import pytest

from vecenv.sandbox import Job, Limits, Sandbox, Status, jail
from vecenv.sandbox.monty import Monty, is_simple

pytestmark = [
    pytest.mark.skipif(bool(jail.lacking()), reason=f"no jail here: {dict(jail.lacking())}"),
    pytest.mark.skipif(not Monty.installed(), reason="no pydantic-monty"),
]


@pytest.fixture(scope="module")
def both():
    with Sandbox(1) as fast, Sandbox(1, engines=["jail"]) as slow:
        yield fast, slow


SIMPLE = [
    "print('a', 1, None, True, sep='-', end='!\\n')",
    "def fib(n):\n    a, b = 0, 1\n    for _ in range(n):\n        a, b = b, a + b\n    return a\nprint(fib(300))",
    "words = 'the cat the dog'.split()\ncount = {}\nfor w in words:\n    count[w] = count.get(w, 0) + 1\n"
    "print(sorted(count.items(), key=lambda pair: (-pair[1], pair[0])), count)",
    "x = [[i * j % 7 for j in range(5)] for i in range(5)]\nprint(x, [[row[0], row[1]] for row in x])",
    "print(10 ** 30, -7 // 2, -7 % 3, 3 ** 9, -2 ** 2, 7 & 3 | 8, 1 << 70, ~5, not 3)",
    "print(f'{42:5d} {1234567:,} {True!r:>6} {\"é\":^5}|', str(1), int('12'))",
    "import math\nprint(math.gcd(12, 18), math.isqrt(99))",
    "s = 'Hällo'\nprint(s[::-1], s.upper(), s.find('l'), s[1:3], 'x'.join(['1', '2']), len(s), ord('ä'), chr(228))",
    "def deep(n):\n    return 0 if n == 0 else 1 + deep(n - 1)\nprint(deep(500))",
    "print(round(25, -1), min(3, 1), max([2, 5]), divmod(-7, 2), sum([1] * 10), abs(-3))",
    "d = {}\nfor i in range(9):\n    if i % 2 == 0 and not i > 6:\n        d[i] = d.get(i - 1, 0) if i > 3 else i\n"
    "print(sorted(d, reverse=True))",
    "print('a\\tb\\\\', ['it\\'s', \"q\\\"\"], {'k': (1,)}, (), [None], 'z' * 3)",
]


def drawn(draw: random.Random, depth: int = 3) -> str:
    """Return a random expression of numbers."""
    if not depth or draw.random() < 0.2:
        return draw.choice([str(draw.randint(-9, 99)), "n", "x", "len(str(n))"])
    left, right = drawn(draw, depth - 1), drawn(draw, depth - 1)
    form = draw.choice(
        ["({} + {})", "({} - {})", "({} * {})", "({} if {} else 1)", "max({}, {})", "divmod({}, {} or 1)[0]"]
    )
    form = draw.choice([form, "({} // ({} or 1))", "({} % ({} or 3))", "({} or {})", "({} < {})", "({} and {})"])
    return form.format(left, right)


def compared(both: tuple[Sandbox, Sandbox], sources: list[str]) -> list[str]:
    jobs = [Job(source, limits=Limits(cpu=1.0, output=10_000)) for source in sources]
    fast, slow = (sandbox.run(jobs) for sandbox in both)
    for source, left, right in zip(sources, fast, slow, strict=True):
        same = [(one.status, one.exit_code, one.stdout, one.stderr) for one in (left, right)]
        assert same[0] == same[1], source
    return [result.engine for result in fast]


def test_the_common_subset_comes_out_alike(both):
    assert set(compared(both, SIMPLE)) == {"monty"}


@pytest.mark.parametrize("count", [20, pytest.param(2000, marks=pytest.mark.nightly)])
def test_random_programs_come_out_alike(both, count):
    draw = random.Random(1)
    body = ["    n, x = {}, {}\n    print(n, x, {})"] * 3
    lines = ["n, x = 7, 25", "def f(n, x):", *body, "f(n, x)"]
    sources = ["\n".join(lines).format(*(drawn(draw) for _ in range(9))) for _ in range(count)]
    assert compared(both, sources).count("monty") > count / 3


OTHERS = [
    "print(sorted({3, 1, 2}))",
    "print('\\ud800')",
    "#" * 10_001,
    "print(list(zip([1], [2])))",
    "return 1",
    "def f():\n    yield 1\nprint(list(f()))",
    "import heapq\nprint(heapq.nlargest(1, [1, 2]))",
    "class A:\n    x = 1\nprint(A.x)",
    "try:\n    1 / 0\nexcept Exception as error:\n    print(error)",
    "print(open)",
    "print(len.__name__)",
    "len = 3\nprint(len)",
    "from math import *\nprint(pi)",
    "print(sum(x for x in range(3)))",
    "print(1313549891316394.25)",
    "print(5 / 2, 2 ** -1)",
    "x = 2\nx **= -1\nprint(x)",
    "print({1: 'a', True: 'b'})",
    "d = {1: 2}\nfor k in [3 > 2]:\n    d[k] = 5\nprint(d)",
    "import sys\nprint('x', file=sys.stderr)",
    "(",
]
"""Programs that are not simple."""

ENDED_BADLY = {"1 // 0": Status.ERROR, "print([0][1])": Status.ERROR, "assert 1 == 2": Status.ERROR}
ENDED_BADLY |= {"print('x' * 20_000)": Status.OUTPUT, "def f(n):\n    return f(n + 1)\nf(0)": Status.ERROR}
ENDED_BADLY |= {"x = []\nx.append(x)\nprint(x)": Status.OK, "import math\nprint(math)": Status.OK}
"""Simple programs of which the jail has the last word."""


def test_what_it_cannot_run_goes_to_the_jail_silently(both):
    assert not any(map(is_simple, OTHERS)) and all(map(is_simple, [*SIMPLE, *ENDED_BADLY]))
    assert set(compared(both, OTHERS)) == {"jail"}
    assert set(compared(both, list(ENDED_BADLY))) == {"jail"}
    fast, _ = both
    assert [result.status for result in fast.run(map(Job, ENDED_BADLY))][:3] == list(ENDED_BADLY.values())[:3]
    read = fast.run([Job("print(1)", stdin="x"), Job("print(1)", files={"a": "b"}), Job("print(1)")])
    assert [(result.text, result.engine) for result in read] == [("1\n", "jail"), ("1\n", "jail"), ("1\n", "monty")]


def test_engines_are_named():
    for engines, named in ((["monty"], "monty"), (["jail", "monty"], "jail, monty"), ([], "none")):
        with pytest.raises(ValueError, match=f"monty, if at all, and then jail or one that is remote; not {named}"):
            Sandbox(1, engines=engines)
