"""Texts become programs or sentences: types, units, limits, the normal form."""

import random

import pytest

from vecenv.programs.drawing import random_programs
from vecenv.programs.expressions import Apply, Feature, Name, Number, Vocabulary
from vecenv.programs.parsing import ProgramError, parsed
from vecenv.programs.printing import hints, printed
from vecenv.programs.units import BARS, MONEY, NONE, PRICE, RETURN, SHARES, WEALTH, common, product, quotient

WORDS = Vocabulary(
    features={
        "close": Feature(PRICE),
        "volume": Feature(SHARES),
        "momentum": Feature(RETURN),
        "rsi": Feature(NONE),
        "cash": Feature(MONEY, account=True),
        "held": Feature(WEALTH, account=True),
        "left": Feature(BARS, account=True),
    },
    outputs={"weight": WEALTH},
)


def test_units_multiply_and_divide():
    assert product(PRICE, SHARES) == MONEY and quotient(MONEY, PRICE) == SHARES and quotient(PRICE, PRICE) == NONE
    assert product(RETURN, None) == RETURN and product(RETURN, PRICE) == PRICE and product(None, None) is None
    assert quotient(RETURN, RETURN) == NONE and product(RETURN, WEALTH) == NONE and quotient(None, BARS).bars == -1
    assert common(None, PRICE) == PRICE and common(NONE, RETURN) == RETURN
    assert str(product(MONEY, quotient(None, BARS))) == "money bars^-1"


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("weight = .50", "weight = 0.5\n"),
        ("weight=--3+0*-2 # why", "weight = 3 + 0 * -2\n"),
        ("weight = (1 - (2 - 3)) * (4 / (5 / 6))", "weight = (1 - (2 - 3)) * (4 / (5 / 6))\n"),
        ("weight = 1 if 0 < momentum < .1 < rsi else 2", None),
        ("weight = max(0, held, 1)", "weight = max(max(0, held), 1)\n"),
        ("weight = 1 if (True or False) and not held >= 0.1 else (2 if True else 3)", None),
        ("weight = plain(max(close, bars=20) / max(close, cash / volume))", None),
        ("weight = mean(rsi, 20)", "weight = mean(rsi, bars=20)\n"),
        ("a = param(1e-3, 'price')\nweight = rank(close - a)", 'a = param(0.001, "price")\nweight = rank(close - a)\n'),
        ("a = -(-rsi); weight = -a", "a = --rsi\nweight = -a\n"),
    ],
)
def test_normal_form(text, normal):
    program = parsed(text, WORDS)
    assert normal in (None, printed(program))
    again = parsed(printed(program), WORDS)
    assert again == program and printed(again) == printed(program)


def test_a_tree():
    a, b = Name("rsi"), Number(2.0)
    chain = Apply("and", (Apply("lt", (a, b)), Apply("le", (b, a))))
    assert parsed("weight = 1 if rsi < 2 <= rsi else 0", WORDS).lines == {
        "weight": Apply("if", (chain, Number(1.0), Number(0.0)))
    }


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("weight = clse / close", "line 1, column 10: unknown name clse (did you mean close?)"),
        ("a = 1\nweight = 2 * (close + held)", "line 2, column 15: + needs one unit, but close is in price, held is"),
        ("weight = 2 * close", "line 1, column 10: weight is in share of wealth, and 2 * close in price"),
        ("weight = momentum", "line 1, column 10: weight is in share of wealth, and momentum in return"),
        ("weight = 1 if close > cash else 0", "column 15: > needs one unit, but close is in price, cash is in money"),
        ("weight = 1 if close else 0", "column 15: close is a number, and a condition is needed: compare it"),
        ("weight = 1 + (held > 0)", "column 15: held > 0 is true or false, not a number: write 1 if ... else 0"),
        ("weight = held > 0", "column 10: weight is a number, and this is true or false"),
        ("weight = 1 if True else False", "both parts of if ... else are numbers, or both are true or false"),
        ("weight = average(rsi, 5)", "unknown function average (did you mean mean?); there are min, max"),
        ("weight = sqrt(rsi)", "unknown function sqrt; there are min, max"),
        ("weight = ema_20", "unknown name ema_20; there are close, volume, momentum, rsi, cash, held, left"),
        ("x = close.rolling(20)", "a function is called by its name alone"),
        ("if rsi > 1:\n    weight = 1", "not a statement: write name = one if condition else other"),
        ("weight = (rsi > 1) & (held > 0)", "the operator &, which is written and, is not in the language"),
        ("weight = close[-1]", "an index, as lag(number, bars=n) reads the past, is not in the language"),
        ("weight = meen(rsi, 5)", "unknown function meen (did you mean mean?)"),
        (
            "weight = mean(rsi, -5)",
            "column 20: the window of mean is of past bars: a negative one would read",
        ),
        ("weight = mean(rsi, 251)", "the window of mean is a whole number from 1 to 250"),
        ("weight = mean(rsi, rsi)", "the window of mean is a whole number"),
        ("weight = std(rsi, bars=1)", "the window of std is a whole number from 2 to 250"),
        ("weight = mean(rsi)", "it is called mean(number, bars=n)"),
        ("weight = max(rsi, days=3)", "it is called max(number, bars=n)"),
        ("weight = max(held, bars=3)", "max reads what is known ahead, and held depends on the account"),
        ("a = held\nweight = rank(a)", "rank reads what is known ahead, and a depends on the account"),
        ("weight = clip(rsi, 0)", "clip has 3 arguments, this has 2"),
        ("weight = min(1)", "min has 2 or more arguments, this has 1"),
        (
            "weight = 1 if 0 < rsi in 2 else 0",
            "the operator in, which is none of < <= > >= == !=, is not in the language",
        ),
        ("weight = rsi ** 2", "the operator ** is not in the language"),
        ("weight = rsi.real", "a dot is not in the language"),
        ("weight = (lambda: weight)()", "a function is called by its name alone, as in mean(number, bars=n)"),
        ("weight = 'a'", "a str is not in the language"),
        ("weight = 1e39", "a number is at most 3.403e+38"),
        ("weight = weight + 1", "weight is given no value before this line"),
        ("rsi = 1", "line 1, column 1: rsi is a feature; choose another name"),
        ("mean = 1", "mean is a function; choose another name"),
        ("a = 1\na = 2", "line 2, column 1: a has its value from line 1; choose another name"),
        ("a = b = 1", "a line gives one name to one expression"),
        ("import os", "a line is name = expression, not Import"),
        ("weight = 1\n2", "line 2, column 1: a line is name = expression, not an expression alone"),
        ("a = param(1, 'prise')", "this is no unit (did you mean price?); there are none, price"),
        ("weight = 1 + param(1)", "a parameter has a line of its own: name = param(number)"),
        ("a = 1", "line 1, column 1: a program ends with weight = ..."),
        ("weight = 1\na = 2", "line 2, column 1: a program ends with weight = ..."),
        ("", "a program ends with weight = ..."),
        ("weight = (1", "line 1, column 10: this is not Python's syntax"),
        ("weight = 1\0", "null bytes"),
        ("weight = \ud800", "this cannot be read"),
        ("weight = " + "9" * 5000, "this"),
        ("weight = " + "(" * 300, "line 1"),
        ("weight = " + "-" * 4000 + "rsi", "line 1"),
        ("weight = " + "1+" * 30 + "1", "more than 24 operations stand within each other"),
        ("\n".join(f"a{i} = 1" for i in range(65)), "line 65, column 1: a program has at most 64 lines"),
        ("#" * 8193, "a program has at most 8,192 characters, this one 8,193"),
        ("é = 1 + ü", "line 1, column 9: unknown name ü"),
    ],
)
def test_what_is_no_program_is_refused_in_a_sentence(text, sentence):
    with pytest.raises(ProgramError) as error:
        parsed(text, WORDS)
    assert sentence in str(error.value) and "\n" not in str(error.value)


def test_an_output_with_a_dimension_says_how_a_number_has_it():
    words = Vocabulary(WORDS.features, outputs={"order": SHARES})
    with pytest.raises(ProgramError) as error:
        parsed("order = -70 * rank(close)", words)
    end = 'and -70 * rank(close) in none; a number has a unit as in size = param(70, "shares"), size * ...'
    assert str(error.value) == f"line 1, column 9: order is in shares, {end}"
    parsed('size = param(70, "shares")\norder = -size * rank(close)', words)


def test_what_may_be_meant_as_a_window_is_told():
    told = hints(parsed("a = max(close, 20)\nweight = 1 if a > min(a * 2, 5) else 0", WORDS))
    assert told == [
        "max(close, 20) is the larger one of two numbers; of the last 20 bars it is max(close, bars=20)",
        "min(a * 2, 5) is the smaller one of two numbers; of the last 5 bars it is min(a * 2, bars=5)",
    ]
    plain = "b = held\nweight = max(rsi, 1) + max(rsi, 2.5) + max(rsi, 251) + max(rsi, bars=20) + max(3, 20) "
    assert hints(parsed(f"{plain} + max(b, 20) + max(cash, 20) / cash", WORDS)) == []


def test_lines_that_nothing_reads_and_parameters():
    program = parsed("a = param(2)\nb = a * rsi\nc = 1\nweight = b", WORDS)
    assert program.unused() == ["c"] and program.parameters == {"a": 2.0}
    assert program.with_parameters({"a": 3}).parameters == {"a": 3.0}
    with pytest.raises(ValueError, match="unknown parameters d; there are a"):
        program.with_parameters({"d": 3})


def check_random_programs(count, seed):
    for program in random_programs(WORDS, count, seed):
        assert parsed(printed(program), WORDS) == program


PIECES = ["weight", "rsi", "held", "close", *" \n()=+-*/<,.;:[]{}@#%\t\0\x0c\\é\ud800", "**", "==", "if", "else", "not"]
PIECES += ["and", "or", "mean", "max", "bars=", "3", "0.5", "1e9", "param", "'price'", "lambda", "f'", "rank", "True"]


def check_fuzzed_texts(count, seed):
    """Texts of pieces, and programs with some characters replaced: read, or refused by a `ProgramError`."""
    draw, read = random.Random(seed), 0
    programs = [printed(program) for program in random_programs(WORDS, 50, seed)]
    for _ in range(count):
        if draw.random() < 0.5:
            text = "".join(draw.choices(PIECES, k=draw.randint(0, 30)))
        else:
            text = draw.choice(programs)
            for _ in range(draw.randint(1, 3)):
                place = draw.randrange(len(text))
                text = text[:place] + draw.choice([*PIECES, ""]) + text[place + draw.randint(0, 2) :]
        try:
            program = parsed(text, WORDS)
        except ProgramError as error:
            assert error.line >= 1 and error.column >= 1 and "\n" not in str(error)
        else:
            read += 1
            assert parsed(printed(program), WORDS) == program
    assert 0 < read < count


def test_random_programs_and_texts():
    check_random_programs(200, seed=1)
    check_fuzzed_texts(2000, seed=1)


@pytest.mark.nightly
def test_many_random_programs_and_texts():
    check_random_programs(20_000, seed=2)
    check_fuzzed_texts(100_000, seed=2)
