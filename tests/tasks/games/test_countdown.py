"""Countdown: its law is held to fractions of Python, its search to all trees, its reading to a grammar by recursion."""

from fractions import Fraction
from functools import cache
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import vecenv
from vecenv.learn.evaluation import evaluate
from vecenv.registry import make_spoken
from vecenv.tasks.games.countdown.agents import AGENTS, blind_moves, tree_of_moves
from vecenv.tasks.games.countdown.config import CountdownConfig
from vecenv.tasks.games.countdown.law import OPERATORS, move_tables, moves_of
from vecenv.tasks.games.countdown.search import count_solutions, solution, written
from vecenv.tasks.games.countdown.task import COUNTDOWN
from vecenv.tasks.games.countdown.text import ExpressionLanguage
from vecenv.testing import check_interaction, check_records, check_task, check_text
from vecenv.text.answer_lines import AnswerFault
from vecenv.text.door import TextDoor


def value_of(left, operator, right):
    """What an operator makes of fractions; None of a quotient by zero, and of what comes of one."""
    if left is None or right is None or (operator == "/" and right == 0):
        return None
    return {"+": left + right, "-": left - right, "*": left * right}.get(operator) if operator != "/" else left / right


def random_tree(draw, places):
    if len(places) == 1:
        return places[0]
    cut = draw.randrange(1, len(places))
    return random_tree(draw, places[:cut]), draw.randrange(4), random_tree(draw, places[cut:])


def tree_value(tree, numbers):
    if isinstance(tree, int):
        return Fraction(numbers[tree])
    left, operator, right = tree
    return value_of(tree_value(left, numbers), OPERATORS[operator], tree_value(right, numbers))


def every(numbers):
    """Values of all trees over exactly these numbers, by a name that is the same for both orders of + and *."""

    @cache
    def trees(places):
        if len(places) == 1:
            return {places[0]: Fraction(numbers[places[0]])}
        found = {}
        for size in range(1, 2 ** len(places) - 1):
            left = tuple(place for bit, place in enumerate(places) if size >> bit & 1)
            right = tuple(place for place in places if place not in left)
            for one, a in trees(left).items():
                for other, b in trees(right).items():
                    for operator in OPERATORS:
                        pair = tuple(sorted((one, other), key=str)) if operator in "+*" else (one, other)
                        if (value := value_of(a, operator, b)) is not None:
                            found[operator, *pair] = value
        return found

    return trees(tuple(range(len(numbers))))


def game(num_envs=64, seed=0, level=None, **config):
    params = {"level": torch.as_tensor(level)} if level is not None else None
    env = vecenv.make(COUNTDOWN, num_envs, seed=seed, compile=False, params=params, **config)
    env.reset()
    return env


def test_it_conforms():
    check_task(COUNTDOWN, compiled=False, slots=4, steps=6)
    check_interaction(COUNTDOWN, attempts=3, slots=3, level=3)


def test_moves_conform_as_texts_and_in_records():
    moves = {"action": "move", "attempts": 2, "slots": 3, "level": 3}
    check_text(COUNTDOWN, **moves)
    check_records(COUNTDOWN, **moves)


def test_puzzles_are_solved_by_what_made_them():
    level = torch.arange(1000) % 5 + 2
    env = game(1000, level=level, largest=100, highest_target=999)
    given, proof = env.state.given.tolist(), env.state.proof.tolist()
    for numbers, target, moves, count in zip(given, env.state.target.tolist(), proof, level.tolist(), strict=True):
        assert all(1 <= number <= 100 for number in numbers[:count]) and not any(numbers[count:])
        tree = tree_of_moves(moves, 6)
        assert tree_value(tree, numbers) == target > 0 and str(tree).count("(") == count - 1
    fits = (env.state.target >= 10) & (env.state.target <= 999) & (env.state.given != env.state.target[:, None]).all(-1)
    assert fits.float().mean() > 0.999


def test_random_moves_do_what_fractions_do():
    """Also of moves that cannot be made, of quotients by zero, and behind the end of an attempt."""
    env = game(400, level=torch.arange(400) % 5 + 2, attempts=2, largest=6, lowest_target=1, highest_target=20)
    table, draw = [(0, 0, 0), *moves_of(6)], Random(0)
    numbers = [[Fraction(number) if number else None for number in row] for row in env.state.given.tolist()]
    start, there = [list(row) for row in numbers], [[number is not None for number in row] for row in numbers]
    undefined, solved_ever, targets = 0, 0, env.state.target.tolist()
    steps, done = [0] * 400, [False] * 400
    for _ in range(12):
        possible = [
            [move for move, (left, right, _) in enumerate(table) if move and row[left] and row[right]] for row in there
        ]
        moves = [draw.choice(own) if own and draw.random() < 0.9 else draw.randrange(len(table)) for own in possible]
        before = env.grades()["grade"]
        reward = env.advance(torch.tensor(moves).unsqueeze(-1))
        for row, move in enumerate(moves):
            if done[row]:
                continue
            left, right, operator = table[move]
            solved = False
            if move and there[row][left] and there[row][right]:
                low, high = min(left, right), max(left, right)
                made = value_of(numbers[row][left], OPERATORS[operator], numbers[row][right])
                numbers[row][low], there[row][high] = made, False
                solved, undefined = made == targets[row], undefined + (made is None)
            steps[row] += 1
            length = sum(number is not None for number in start[row]) - 1
            done[row], solved_ever = bool(solved or steps[row] == 2 * length), solved_ever + bool(solved)
            if steps[row] % length == 0 and not solved:
                numbers[row], there[row] = list(start[row]), [number is not None for number in start[row]]
            assert bool(env.state.solved[row]) == solved and bool(env.rows.done[row]) == done[row]
            assert env.state.there[row].tolist() == there[row]
            for top, bottom, own, here in zip(
                env.state.top[row].tolist(), env.state.bottom[row].tolist(), numbers[row], there[row], strict=True
            ):
                assert not here or (own is None and top == bottom == 0) or (bottom and Fraction(top, bottom) == own)
        assert torch.equal(reward, env.grades()["grade"] - before)
    assert undefined and solved_ever


def test_the_largest_numbers_fit():
    env = game(4, level=[6] * 4, largest=100, action="expression")
    env.rows.state.given[:] = env.rows.state.top[:] = 100
    number = move_tables(6)["move_number"].view(6, 6, 4)
    # (100 + 1 / 100) as often as it goes: numerators and denominators grow the most.
    for tree in (((((0, 3, 1), 0, (2, 3, 3)), 0, (4, 3, 5))), (((((0, 2, 1), 2, 2), 2, 3), 2, 4), 2, 5)):
        moves, expected = [], tree_value(tree, [100] * 6)

        def carry_out(tree, moves=moves):
            if isinstance(tree, int):
                return tree
            left, right = carry_out(tree[0]), carry_out(tree[2])
            moves.append(int(number[left, right, tree[1]]))
            return min(left, right)

        carry_out(tree)
        env.rows.state.target[:] = int(expected) if expected < 10**5 else 60_000
        env.rows.state.solved[:], env.rows.terminated[:], env.rows.state.steps[:] = False, False, 0
        env.advance(torch.tensor([moves] * 4))
        assert env.state.solved.all() == (expected < 10**5)


def test_solutions_are_all_trees():
    draw = Random(1)
    for size in (2, 3, 4, 4):
        numbers = [draw.randint(1, 9) for _ in range(size)]
        found = list(every(numbers).values())
        for target in (1, 6, 10, 24):
            assert count_solutions(tuple(numbers), target, True) == found.count(target), (numbers, target)
    numbers = (2, 3, 7)
    parts = [list(every([numbers[place] for place in places]).values()) for places in ((0, 1), (0, 2), (1, 2))]
    assert count_solutions(numbers, 6) == sum(part.count(6) for part in [*parts, list(every(numbers).values())])
    # More than four numbers are asked for from both ends: (1 - 1) makes whatever it multiplies nothing.
    assert solution((1, 1, 7, 7, 7), 7, True) is not None
    assert count_solutions((3, 3, 5), 1000) == 0 and solution((3, 3, 5), 1000) is None


@pytest.mark.nightly
def test_solutions_of_five_are_all_trees():
    for numbers in ((1, 1, 2, 2, 3), (5, 5, 5, 1, 2)):
        found = list(every(numbers).values())
        for target in (1, 7, 10, 24):
            assert count_solutions(numbers, target, True) == found.count(target)


@settings(max_examples=300)
@given(st.integers(0, 2**32), st.integers(2, 6))
def test_written_trees_are_read_as_what_they_are(seed, size):
    draw = Random(seed)
    numbers = [draw.randint(1, 9) for _ in range(size)]
    places = draw.sample(range(size), draw.randint(2, size))
    tree = random_tree(draw, places)
    text = written(tree, numbers)
    language = ExpressionLanguage(
        [str(number) for number in numbers], 7, move_tables(size)["move_number"].tolist(),
        CountdownConfig(slots=size, level=2, action="expression"),
    )  # fmt: skip
    dressed = draw.choice(
        ["{}", "<answer>{}</answer>", "**{}**", "Answer: {}", "<think>1+1</think> {} = 7", "```\n{}\n```"]
    )
    dressed = dressed.format(draw.choice([text, text.replace("*", "×").replace("/", "÷"), text.replace(" ", "")]))
    read = tree_of_moves(language.read(dressed), size)
    assert tree_value(read, numbers) == tree_value(tree, numbers)
    if tree_value(tree, numbers) is not None:
        # Python reads what is written as the same.
        terms = "".join(
            f"Fraction({part})" if part.isdigit() else part
            for part in text.replace("(", "( ").replace(")", " )").split()
        )
        assert eval(terms, {"Fraction": Fraction}) == tree_value(tree, numbers)


WRONG = {
    "3 + 8": "'8' is not among the numbers",
    "3 + 3": "'3' is used too often",
    "C + A": "used too often|not among|no part",
    "-3 + 7": "must be a number without a sign",
    "3 ** 7": "must be",
    "7 * - 3": "must be a number without a sign",
    "7 x * 3": "must be a number without a sign",
    "7 + *3": "must be a number without a sign",
    "3 7": "must be an operator",
    "(3 + 7": "a bracket is not closed",
    "3 + 7)": "a bracket is closed that none opens",
    "3 +": "has no end",
    "3": "at least two numbers",
    "3 + 7 = 11": "after = stands the target, 10,",
    "3 + 7\n3 * 7": "several lines",
    "three": "no part of an expression",
    "3 + 7.0": "no part of an expression",
    "__import__('os')": "no part of an expression",
}


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_expression_is_told_why(text):
    language = ExpressionLanguage(
        ["3", "7"], 10, move_tables(2)["move_number"].tolist(), CountdownConfig(slots=2, level=2, action="expression")
    )
    with pytest.raises(AnswerFault, match=WRONG[text]):
        language.read(text)
    assert language.parse("(" * 498 + "3+7" + ")" * 498) == [1]
    assert language.fault("(" * 150_000 + "3+7" + ")" * 150_000) == "an expression has at most 1,000 characters"


def test_expressions_earn_the_target_the_form_or_nothing():
    env = make_spoken(COUNTDOWN, 4, level=3, slots=4, use_all=True)
    env.reset()
    state, door = env.state, TextDoor(env)
    numbers, proof = state.given[0].tolist(), state.proof[0].tolist()
    solving, wrong = written(tree_of_moves(proof, 4), numbers), f"{numbers[0]} / ({numbers[1]} * {numbers[2]})"
    env.rows.state.given[:], env.rows.state.top[:], env.rows.state.target[:] = (
        state.given[0],
        state.top[0],
        state.target[0],
    )
    texts = [solving, wrong, f"{numbers[0]} + {numbers[1]}", "no idea"]
    action, valid = door.parse(texts, range(4))
    reward = env.advance(action)
    assert valid.tolist() == [True, True, False, False]
    assert torch.allclose(reward, torch.tensor([1.0, 0.1, 0.0, 0.0])) and env.rows.done.all()


def test_agents_know_what_they_know():
    for action in ("move", "expression"):
        env = vecenv.make(COUNTDOWN, 128, compile=False, level=3, action=action)
        record = evaluate(env, {name: agent() for name, agent in AGENTS.items()}, seed=3).records
        solved = {name: float(one.outcomes["success"].mean()) for name, one in record.items()}
        assert solved["solver"] == solved["hindsight"] == 1 > solved["greedy"] > 0.3 > solved["random"] + 0.1
        assert all(float(one.grades["grade"].min()) >= 0.0999 for one in record.values())


def test_levels_and_settings_out_of_range_are_refused():
    with pytest.raises(ValueError, match="level must be at most slots, 3, got 4"):
        CountdownConfig(slots=3)
    with pytest.raises(ValueError, match="lowest_target must be at most highest_target, 5"):
        CountdownConfig(highest_target=5)
    with pytest.raises(ValueError, match="level must be at most slots, 4, in every row"):
        game(2, level=[2, 5], slots=4)


def solved_by(rule, numbers, target):
    """Return whether moves, the same of any puzzle, make the target, by fractions."""
    there, table = dict(enumerate(map(Fraction, numbers))), [(0, 0, 0), *moves_of(3)]
    for left, right, operator in (table[move] for move in rule):
        if left != right and left in there and right in there:
            made = value_of(there[left], OPERATORS[operator], there[right])
            if made == target:
                return True
            there[min(left, right)] = made
            del there[max(left, right)]
    return False


@pytest.mark.parametrize("action", ["move", "expression"])
def test_no_blind_rule_that_differs_in_one_move_solves_more(action):
    env = vecenv.make(COUNTDOWN, 256, compile=False, slots=3, level=3, action=action)
    env.reset()
    puzzles = list(zip(env.state.given.tolist(), env.state.target.tolist(), strict=True))
    rule = blind_moves(env.scenario, env.state.given, env.state.target).tolist()

    def share(rule):
        return sum(solved_by(rule, *puzzle) for puzzle in puzzles) / len(puzzles)

    others = [[*rule[:place], move, *rule[place + 1 :]] for place in range(2) for move in range(19)]
    assert share(rule) == max(map(share, others)) > min(map(share, others))
    record = evaluate(env, {"blind": AGENTS["blind"]()}, seed=3).records["blind"]
    played = list(zip(env.state.given.tolist(), env.state.target.tolist(), strict=True))
    rule = blind_moves(env.scenario, env.state.given, env.state.target).tolist()
    assert record.outcomes["success"].tolist() == [float(solved_by(rule, *puzzle)) for puzzle in played]
