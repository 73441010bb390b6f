"""Baselines of the task: written rules, random programs and searches, and the best rule of the planted market."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random

from vecenv.programs.expressions import Program
from vecenv.programs.printing import printed
from vecenv.tasks.strategy.config import STOCK_TRADING, StrategyConfig
from vecenv.tasks.strategy.scene import StrategyWriting
from vecenv.tasks.strategy.search import Worth, best_of, drawn_programs, genetic

NUM_RANDOM = 4096
"""Programs of which `best_of_random` answers the best."""

RSI = (
    "up = mean(max(delta(close, bars=1), 0), bars=14)\n"
    "down = mean(max(-delta(close, bars=1), 0), bars=14)\n"
    "rsi = 100 * up / (up + down)\n"
    "wanted = {part} if rsi < 30 else 0 if rsi > 70 else held\n"
)
CROSSOVER = "wanted = {part} if mean(close, bars=10) > mean(close, bars=30) else 0\n"
BUY_AND_HOLD = "wanted = {part} if cash_share > 0.5 else held\n"
EACH_BOUGHT = "wanted = held if held > 0 else {part}\n"
"""Buy and hold where limits leave cash, and a day has not orders for all symbols."""

NEARLY = 0.005
"""Share of the account by which a position may differ from what is wanted, where a rule gives the orders."""

BEST = {
    "momentum": "wanted = 1 if mean(close / lag(close, bars=1) - 1, bars=10) > 0 else 0\n",
    "reversal": "wanted = 1 if close < lag(close, bars=1) else 0\n",
    "cross_section": "wanted = 1 if rank(close / lag(close, bars=1)) > {half} else 0\n",
    "signal": "wanted = 1 if signal > 0 else 0\n",
}
"""The best rules of planted markets, long only and without costs, of which equal parts are held."""

IN_PYTHON = {
    BUY_AND_HOLD: ("cash_share, held", "return {part} if cash_share > 0.5 else held"),
    EACH_BOUGHT: ("held", "return held if held > 0 else {part}"),
    CROSSOVER: (
        "close",
        "if len(close) < 30:\n        return 0\n"
        "    return {part} if sum(close[-10:]) / 10 > sum(close[-30:]) / 30 else 0",
    ),
    RSI: (
        "close, held",
        "moves = [close[i] - close[i - 1] for i in range(max(-14, 1 - len(close)), 0)]\n"
        "    up, total = sum([max(move, 0) for move in moves]), sum([abs(move) for move in moves])\n"
        "    rsi = 100 * up / total if total else 50\n"
        "    return {part} if rsi < 30 else 0 if rsi > 70 else held",
    ),
    BEST["momentum"]: (
        "close",
        "moves = [close[i] / close[i - 1] - 1 for i in range(max(-10, 1 - len(close)), 0)]\n"
        "    return 1 if sum(moves) > 0 else 0",
    ),
    BEST["reversal"]: ("close", "return 1 if len(close) > 1 and close[-1] < close[-2] else 0"),
}
"""The same rules in Python: arguments and body of what wants a share."""

_PYTHON_ENDINGS = {
    "weights": ("weight", "wanted({own})"),
    "tilt": ("tilt", "wanted({own}) * {parts} - 1"),
    "shares": ("order", "wanted({own}) * value / close[-1] - holdings"),
    "orders": (
        "order",
        "0 if abs(wanted({own}) - held) < {nearly} else (wanted({own}) - held) / (max(cash_share, 1e-9) if "
        "wanted({own}) > held else held)",
    ),
}

_MORE = {"shares": ["value", "close", "holdings"], "orders": ["held", "cash_share"]}
"""Arguments of these beside those of the rule."""

_ENDINGS = {
    "weights": "weight = wanted\n",
    "tilt": "tilt = plain(wanted) * {parts} - 1\n",
    "shares": "order = plain(wanted) * value / close - holdings\n",
    "orders": (
        "gap = plain(wanted - held)\n"
        "order = 0 if abs(gap) < {nearly} else gap / plain(cash_share if gap > 0 else held)\n"
    ),
}


def written(world: StrategyWriting, rule: str) -> str:
    """Return a program from a rule that says which share of the account it wants of each symbol."""
    symbols, tier = len(world.symbols), world.config.account != STOCK_TRADING
    part, half = world.config.strategies.share(world.config.rules(), symbols), (symbols - symbols // 2 + 0.5) / symbols
    rule = EACH_BOUGHT if tier and rule == BUY_AND_HOLD else rule
    text = rule + _ENDINGS[world.config.action]
    if world.config.language == "python":
        own, body = IN_PYTHON[rule]
        output, ending = _PYTHON_ENDINGS[world.config.action]
        given = ", ".join(dict.fromkeys([*own.split(", "), *_MORE.get(world.config.action, [])]))
        text = f"def wanted({own}):\n    {body}\n\ndef {output}({given}):\n    return {ending.replace('{own}', own)}\n"
    return text.format(part=f"{part:.6g}", parts=f"{1 / part:.6g}", half=f"{half:.6g}", nearly=NEARLY)


class Author:
    """Answers with a program for each episode, and ends it there."""

    def __init__(self, program: Callable[[StrategyWriting, int], str]) -> None:
        self.program = program

    def answer(self, world: StrategyWriting, ids: Sequence[int], shown: Sequence[str]) -> list[str]:
        final = world.config.tries > 1
        texts = [self.program(world, row) for row in ids]
        return [f"<final_code>\n{text}</final_code>" if final else text for text in texts]


def _rule(rule: str) -> Author:
    return Author(lambda world, row: written(world, rule))


class RandomPrograms:
    """Answers with another random program at each try: what a model imitates to learn the language."""

    def answer(self, world: StrategyWriting, ids: Sequence[int], shown: Sequence[str]) -> list[str]:
        states = [world.rows[row] for row in ids]
        return [world.random_answer(Random(f"{state.episode} {state.tries}")) for state in states]


Search = Callable[[StrategyWriting, Worth, int], Program]
"""Given the world, what programs are worth on an episode's shown paths, and a seed of the episode."""


def searching(search: Search) -> Author:
    """Return an author of what a search finds on an episode's shown paths, less the price of lines."""

    def found(world: StrategyWriting, row: int) -> str:
        if world.config.language == "python":
            raise ValueError("a search writes the language of programs: choose env.language programs")
        episode, price = world.rows[row].episode, world.config.price_per_line

        def worth(programs: Sequence[Program], most: int) -> list[float]:
            grades = world.grades(episode, programs, most).mean.tolist()
            return [grade - price * len(program.lines) for grade, program in zip(grades, programs, strict=True)]

        return printed(search(world, worth, Random(str(episode)).randrange(2**31)))

    return Author(found)


def best_of_random(world: StrategyWriting, worth: Worth, seed: int) -> Program:
    """Return the best of `NUM_RANDOM` random programs."""
    programs = drawn_programs(world.vocabulary, NUM_RANDOM, seed, world.config.most_lines)
    return best_of(programs, worth, world.config.paths)


def by_generations(world: StrategyWriting, worth: Worth, seed: int) -> Program:
    """Return the best program of a genetic search."""
    return genetic(world.vocabulary, worth, world.config.paths, seed)


def best_rule(world: StrategyWriting) -> Author | None:
    """Return the author of the planted market's best rule; None where none is known: on tiers, with costs, by tilts."""
    config: StrategyConfig = world.config
    known = BEST.get(config.planted_kind) if config.market == "planted" else None
    free = config.account == STOCK_TRADING and config.commission == config.slippage == 0 and config.action != "tilt"
    if (
        known is None
        or (config.language == "python" and known not in IN_PYTHON)
        or not free
        or (config.planted_kind == "signal" and "signal" not in config.features)
    ):
        return None
    return Author(lambda world, row: written(world, known))


AGENTS: dict[str, Callable[[], Author | RandomPrograms]] = {
    "buy_and_hold": partial(_rule, BUY_AND_HOLD),
    "rsi": partial(_rule, RSI),
    "crossover": partial(_rule, CROSSOVER),
    "random_programs": RandomPrograms,
    "best_of_random": partial(searching, best_of_random),
    "genetic": partial(searching, by_generations),
}
"""Baselines by name; the best rule is that of the domain."""
