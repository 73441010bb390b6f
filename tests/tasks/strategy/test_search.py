"""Searches among programs: trees keep their values, and the best is found."""

from random import Random

import pytest
import torch

from vecenv.programs.evaluation import Evaluator
from vecenv.programs.expressions import Feature, Parameter, Vocabulary, parts_of
from vecenv.programs.parsing import parsed
from vecenv.programs.printing import printed
from vecenv.programs.units import NONE, PRICE, WEALTH
from vecenv.tasks.strategy import agents, search

WORDS = Vocabulary({"close": Feature(PRICE), "x": Feature(NONE)}, outputs={"weight": WEALTH})
FEATURES = {name: torch.rand(2, 40, 3, generator=torch.Generator().manual_seed(len(name))) for name in WORDS.features}
TARGET = parsed("weight = x + 0.5 if delta(close, bars=3) > 0 else 0", WORDS)


def values(programs):
    return Evaluator(programs).over(FEATURES)[:, 0, :, 10:].nan_to_num(9.0, 9.0, -9.0).clamp(-9, 9)


def near(programs, most):
    """Return how near programs are to a target, on the first paths."""
    return (-(values(programs) - values([TARGET])).abs().mean((1, 2, 3))).tolist()


def test_trees_of_one_line_and_of_named_numbers_compute_the_same():
    drawn = search.drawn_programs(WORDS, 60, 1, 3)
    trees = [search.expanded(program) for program in drawn]
    named = [search.with_named_numbers(program) for program in drawn]
    one_line = [search.checked(tree, WORDS) for tree in trees]
    kept = [place for place, program in enumerate(one_line) if program is not None]
    assert len(kept) > 30 and any(own.parameters for own in named)
    wanted = values([drawn[place] for place in kept])
    assert torch.equal(values([one_line[place] for place in kept]), wanted)
    assert torch.equal(values([named[place] for place in kept]), wanted)


def test_a_part_is_replaced_in_its_place():
    tree = search.expanded(parsed("a = param(2)\nweight = x * a if x > 1 and close > 3 else 0", WORDS))
    parts = list(parts_of(tree))
    other = search.expanded(parsed("weight = x - 7", WORDS))
    for place, part in enumerate(parts):
        found = list(parts_of(search.replaced(tree, place, other)))
        assert found[:place] == [*found[:place]] and found[place] == other
        assert found[place + 3 :] == parts[place + sum(1 for _ in parts_of(part)) :]
    assert [search.is_truth(part) for part in parts].count(True) == 3
    assert search.checked(search.replaced(tree, 0, parts[1]), WORDS) is None  # a condition is no weight


def test_the_best_of_many_is_found_by_halving():
    programs = search.drawn_programs(WORDS, 300, 2, 3)
    asked = []

    def worth(some, most):
        asked.append((len(some), most))
        return near(some, most)

    best = search.best_of(programs, worth, 256)
    assert asked == [(300, 16), (18, 64), (16, 256)]
    assert near([best], 1)[0] == max(near(programs, 1))
    assert search.best_of(programs[:5], worth, 1) is not None and asked[-1] == (5, 1)


def test_the_genetic_search_improves_its_first_generation():
    graded = []

    def worth(some, most):
        graded.append(len(some))
        return near(some, most)

    best = search.genetic(WORDS, worth, 8, 3, population=32, generations=6)
    assert sum(graded[:-1]) <= 32 * 6 and not any(isinstance(line, Parameter) for line in best.lines.values())
    assert near([best], 1)[0] > max(near(search.drawn_programs(WORDS, 32, 3, 3), 1))
    assert printed(best) == printed(search.genetic(WORDS, worth, 8, 3, population=32, generations=6))


def test_searching_agents_pay_for_lines(monkeypatch):
    from tests.tasks.strategy.test_strategy import ONE, world_of

    monkeypatch.setattr(agents, "NUM_RANDOM", 24)
    world = world_of(paths=2)
    world.begin([0], [ONE])
    (text,) = agents.searching(agents.best_of_random).answer(world, [0], [""])
    programs = search.drawn_programs(world.vocabulary, 24, Random(str(ONE)).randrange(2**31), 64)
    best = max(float(grade) for grade in world.grades(ONE, programs).mean)
    assert text.startswith("<final_code>") and world.answer([0], [text])[0].outcomes["shown"] == pytest.approx(best)
