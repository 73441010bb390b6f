"""Verdicts beside plain Python: their word, their sentence, what they leave unsaid, and what luck takes off."""

import json
import math
import random
from dataclasses import replace
from io import StringIO

import pytest
import torch
from rich.console import Console

from vecenv.learn.domain import AgentRecord
from vecenv.learn.evaluation import Evaluation
from vecenv.learn.intervals import Interval, expected_maximum, student_quantile
from vecenv.learn.report import show_evaluation
from vecenv.learn.verdict import ABOVE, Verdict, validation_verdict, verdict_text, verdicts

NAN = math.nan


def evaluation_of(grades: dict, blocks: list | None = None, reference: str = "held") -> Evaluation:
    records = {
        name: AgentRecord(
            grades={"grade": torch.tensor(values, dtype=torch.float64), "other": torch.zeros(len(values))},
            outcomes={},
            reward=torch.zeros(len(values), dtype=torch.float64),
            length=torch.ones(len(values), dtype=torch.int64),
        )
        for name, values in grades.items()
    }
    number = len(next(iter(grades.values())))
    groups = torch.tensor(range(number) if blocks is None else blocks)
    return Evaluation({"task": "game"}, 0, number, records, reference, "oracle", {}, groups, part="test")


def word_of(differences: list, blocks: list) -> str:
    """The decision of the rules: leave out a block at a time, and see on which side of the interval zero is."""
    names = sorted(set(blocks))
    if len(names) < 3:
        return "unknown"
    mean, without = sum(differences) / len(differences), []
    for name in names:
        left = [value for value, block in zip(differences, blocks, strict=True) if block != name]
        without.append(sum(left) / len(left))
    centre = sum(without) / len(without)
    error = math.sqrt((len(names) - 1) / len(names) * sum((value - centre) ** 2 for value in without))
    margin = student_quantile(len(names) - 1) * error
    return "better" if mean - margin > 0 else "worse" if mean + margin < 0 else "no difference"


def test_the_word_is_that_of_plain_python_over_random_episodes():
    drawn, words = random.Random(7), []
    for _ in range(300):
        number, shift = drawn.randint(1, 12), drawn.choice((-0.4, 0.0, 0.4))
        blocks = [drawn.randint(0, 5) for _ in range(number)]
        trained, held = ([drawn.gauss(by, 0.3) for _ in range(number)] for by in (shift, 0.0))
        (told,) = verdicts(evaluation_of({"trained": trained, "held": held}, blocks), ["trained"])
        differences = [one - other for one, other in zip(trained, held, strict=True)]
        assert told.word == word_of(differences, blocks)
        assert told.difference.mean == pytest.approx(sum(differences) / number)
        words.append(told.word)
    assert min(map(words.count, ("better", "worse", "no difference", "unknown"))) > 10


def test_sentences_of_each_word_and_their_colours():
    def said(trained: list, before: list, **more) -> str:
        out, grades = StringIO(), {"trained": trained, "untrained": before, "held": [0.4, 0.5, 0.55]}
        told = evaluation_of(grades, **more)
        console = Console(file=out, force_terminal=True, color_system="standard", width=400)
        show_evaluation(console, told, verdicts(told, ["trained"], ["untrained"], 7))
        return out.getvalue()[out.getvalue().index("Verdict") :]

    up, none = [0.6, 0.7, 0.8], [0.0, 0.0, 0.0]
    better = "\x1b[32mis better than held (+0.217 of grade, +0.145 … +0.288)\x1b[0m and "
    start = "Verdict   test, 3 episodes: trained (the best of 7 validations) "
    same = "\x1b[33mcannot be told from untrained (+0.000 of grade, "
    for trained, before, told in (
        (up, none, f"{better}\x1b[32mis better than untrained (+0.700 of grade, +0.453 … +0.947)\x1b[0m"),
        (up, [0.5, 0.8, 0.8], f"{better}{same}−0.247 … +0.247)\x1b[0m. No part of that is seen to be learned"),
        ([0.2, 0.3, 0.3], [0.2, 0.3, 0.3],
         f"\x1b[31mis worse than held (−0.217 of grade, −0.288 … −0.145)\x1b[0m and {same}+0.000 … +0.000)\x1b[0m"),
        ([0.4, 0.5, 0.65], none,
         "\x1b[33mcannot be told from held (+0.033 of grade, −0.109 … +0.176)\x1b[0m and \x1b[32mis better than "
         "untrained (+0.517 of grade, +0.206 … +0.827)\x1b[0m. Nothing learned beyond held is seen"),
    ):  # fmt: skip
        assert said(trained, before) == f"{start}{told}\n"
    unknown = said(up, none, blocks=[0, 0, 1])
    assert unknown.count("cannot be told from") == 2 and "better" not in unknown
    alone = said(up, none, reference="silent")
    assert "is better than untrained" in alone and "silent" not in alone


def test_what_is_not_known_is_no_claim():
    """One episode, no benchmark, and a difference that is no number."""
    one = evaluation_of({"trained": [0.9], "held": [0.1]})
    (told,) = verdicts(one, ["trained"])
    assert told.clause() == "cannot be told from held (+0.800 of grade): too few independent episodes for an interval"
    assert json.loads(json.dumps(told.to_json(), allow_nan=False)) == {
        "agent": "trained", "benchmark": "held", "part": "test", "episodes": 1, "measure": "grade", "word": "unknown",
        "difference": {"mean": pytest.approx(0.8), "low": None, "high": None}, "looks": None, "luck": 0.0,
        "told": told.clause(),
    }  # fmt: skip
    (none,) = verdicts(evaluation_of({"trained": [0.9, 0.8, 0.7]}), ["trained"], ["untrained"])
    assert (none.word, none.benchmark, none.to_json()["benchmark"]) == ("unknown", "", None)
    told = "Verdict   test, 3 episodes: trained is not judged, as no benchmark played"
    assert verdict_text([none]).plain == f"{told}: add held to --agents"
    assert replace(none, absent="").clause() in told
    (odd,) = verdicts(evaluation_of({"trained": [NAN, 1.0, 1.0], "held": [0.0] * 3}), ["trained"])
    assert odd.word == "unknown" and "nan" not in odd.clause() and odd.to_json()["difference"]["mean"] is None


def test_seeds_are_judged_by_their_mean():
    grades = {"trained_1": [0.9, 0.1, 0.8], "trained_2": [0.1, 0.9, 0.4], "held": [0.0, 0.0, 0.1]}
    (told,) = verdicts(evaluation_of(grades), ["trained_1", "trained_2"])
    assert (told.agent, told.word, told.difference) == ("the mean of 2 seeds", "better", (pytest.approx(0.5),) * 3)


def test_the_best_of_many_validations_is_less_than_it_looks():
    def row(update: int, mean: float = NAN, margin: float = 0.2, reward: float = 0.0) -> dict:
        bounds = {f"{ABOVE}_low": mean - margin, f"{ABOVE}_high": mean + margin}
        return {"update": update, "validation_reward": reward, ABOVE: mean, **bounds}

    def told(*kept: tuple, looks: int | None = None) -> Verdict:
        verdict = validation_verdict("trained", "held", "excess_log_return", kept, looks)
        assert verdict is not None
        return verdict

    # The kept one counts, not a later and better one of a member whose patience was over; other updates are no looks.
    log = [row(1, 0.3), row(2, reward=NAN), row(3, 9.0)]
    one = told((log, 1))
    luck = 0.2 / 1.959964 * expected_maximum(2)
    assert expected_maximum(2) == pytest.approx(1 / math.sqrt(math.pi))
    assert one.difference == pytest.approx((0.3 - luck, 0.1 - luck, 0.5 - luck)) and one.luck == pytest.approx(luck)
    assert (one.looks, one.word, told((log[:1], 1)).luck) == (2, "better", 0.0)
    many = told(([row(1, 0.3), *(row(update, 0.0) for update in range(2, 42))], 1))
    assert (many.looks, many.word) == (41, "no difference") and ", less 22." in many.clause()
    # Those of all trials of a sweep.
    assert told((log[:1], 1), looks=41) == many
    both = told((log[:1], 1), ([row(1, 0.5), row(2, 0.0)], 1))
    assert both.difference.mean == pytest.approx((0.3 + 0.5 - luck) / 2) and both.looks == 2
    assert told(([row(1, 0.3, NAN)], 1)).word == "unknown"
    assert verdict_text([one]).plain.startswith("Verdict   validation: trained (the best of 2 validations) is better")
    for seeds in ([([], 1)], [(log, 2)], [([{"update": 1, "validation_reward": 1.0}], 1)], [(log, 1), ([], 1)]):
        assert validation_verdict("trained", "held", "grade", seeds) is None


def test_bounds_of_a_mean_grade_are_in_its_range(monkeypatch):
    for found, low, high in ((Interval(0.5, -1.0, 2.0), 0.0, 1.0), (Interval(0.5, NAN, NAN), NAN, NAN)):
        monkeypatch.setattr(Evaluation, "interval", lambda *_, found=found: found)
        told = evaluation_of({"held": [0.5, 0.5]}).grades["held"]["grade"]
        assert told == pytest.approx((0.5, low, high), nan_ok=True)
