"""Self-made tests: rewards against plain Python, whatever the order and the masks; the pool; the conversation."""

import math
import random

import pytest
import torch

from vecenv.tasks.code.own_tests import Pool, PooledTest, score_group

NAN = math.nan


def cells(draw: random.Random, n: int, m: int, failing: float) -> tuple[torch.Tensor, torch.Tensor]:
    easy = draw.choice([0.2, 0.5, 0.8, 1.0])
    passed = torch.tensor([[draw.random() < easy for _ in range(m)] for _ in range(n)]).view(n, m)
    return passed, torch.tensor([[draw.random() >= failing for _ in range(m)] for _ in range(n)]).view(n, m)


def separation_by_hand(passed, known, right, wrong) -> list[float]:
    worth = []
    for k in range(len(passed[0])):
        rights = [passed[j][k] for j in range(len(passed)) if right[j] and known[j][k]]
        wrongs = [passed[j][k] for j in range(len(passed)) if wrong[j] and known[j][k]]
        if not rights or (any(wrong) and not wrongs):
            worth.append(NAN)
        elif not wrongs:
            worth.append(0.0)
        else:
            worth.append((wrongs.count(False) if all(rights) else -wrongs.count(True)) / len(wrongs))
    return worth


def agreement_by_hand(passed, known) -> tuple[list[float], list[bool], list[bool]]:
    n, m = len(passed), len(passed[0])
    asked = [k for k in range(m) if any(known[j][k] for j in range(n))]
    told = [j for j in range(n) if all(known[j][k] for k in asked)]
    count = [k for k in asked if len({passed[j][k] for j in told}) == 2]
    sets: dict[tuple, list[int]] = {}
    for j in told:
        sets.setdefault(tuple(passed[j][k] for k in count), []).append(j)
    score = {j: len(members) * sum(row) for row, members in sets.items() for j in members}
    best = max(score.values(), default=0)
    worth = [score[j] / max(1, len(told) * len(count)) if j in score else NAN for j in range(n)]
    accepted = [j in score and score[j] == best > 0 for j in range(n)]
    return worth, accepted, [j in score and not accepted[j] for j in range(n)]


def group_by_hand(own, true, own_weight) -> tuple[list[float], list[float], float]:
    passed, known = (each.tolist() for each in own)
    n, m = len(passed), len(passed[0])
    columns = [k for k in range(m) if any(row[k] for row in known)]
    alike = [k for k in columns if all(passed[j][k] or not known[j][k] for j in range(n))]
    if true is None:
        worth, right, wrong = agreement_by_hand(passed, known)
        tests = separation_by_hand(passed, known, right, wrong)
        if any(wrong) and not any(right):
            tests = [0.0 if k in columns else NAN for k in range(m)]
        return worth, tests, len(alike) / max(1, len(columns))
    right = [
        all(p and k for p, k in zip(*row, strict=True)) for row in zip(*(each.tolist() for each in true), strict=True)
    ]
    wrong = [
        any(k and not p for p, k in zip(*row, strict=True))
        for row in zip(*(each.tolist() for each in true), strict=True)
    ]
    tests = separation_by_hand(passed, known, right, wrong)
    worth = []
    for j in range(n):
        share = sum(true[0][j].tolist()) / true[0].shape[1] if all(true[1][j].tolist()) else NAN
        power = {k: tests[k] for k in range(m) if tests[k] > 0 and known[j][k]}
        if power:
            found = sum(worth for k, worth in power.items() if passed[j][k]) / sum(power.values())
            share = (1 - own_weight) * share + own_weight * found
        worth.append(share)
    return worth, tests, len(alike) / len(columns) if columns and any(wrong) else 0.0


def test_rewards_are_those_of_plain_python_in_any_order():
    draw, own_weight = random.Random(1), 0.3
    seen = {"unknown": 0, "punished": 0, "paid": 0, "collusion": 0}
    for _ in range(120):
        n, m, t = draw.choice([1, 2, 5, 9]), draw.choice([1, 2, 6]), draw.choice([1, 3])
        own = cells(draw, n, m, draw.choice([0.0, 0.0, 0.2, 1.0]))
        true = draw.choice([None, cells(draw, n, t, draw.choice([0.0, 0.1]))])
        scores = score_group(own, true, own_weight)
        programs, tests, collusion = group_by_hand(own, true, own_weight)
        assert scores.programs.tolist() == pytest.approx(programs, nan_ok=True)
        assert scores.tests.tolist() == pytest.approx(tests, nan_ok=True) and scores.collusion == collusion
        for name, holds in zip(
            seen, (any(map(math.isnan, tests)), min(tests) < 0, max(tests) > 0, collusion > 0), strict=True
        ):
            seen[name] += holds
        rows, columns = torch.tensor(draw.sample(range(n), n)), torch.tensor(draw.sample(range(m), m))
        turned = tuple(each[rows][:, columns] for each in own)
        again = score_group(turned, true and tuple(each[rows] for each in true), own_weight)
        torch.testing.assert_close(again.programs, scores.programs[rows], equal_nan=True)
        torch.testing.assert_close(again.tests, scores.tests[columns], equal_nan=True, rtol=0, atol=0)
        assert again.right.equal(scores.right[rows]) and again.collusion == scores.collusion
    assert min(seen.values()) > 5, seen


P, F = True, False


@pytest.mark.parametrize(
    ("own", "true", "tests", "programs", "collusion"),
    [
        # Two right, two wrong programs; tests: one separates, passes all, rejects all, is the wrong way round, half.
        (
            [[P, P, F, F, P], [P, P, F, F, P], [F, P, F, P, P], [F, P, F, P, F]], [P, P, F, F],
            [1, 0, 0, -1, 0.5], [1, 1, 0.2 / 3, 0], 0.2,
        ),
        # All right: there is nothing to separate, also for a test that is wrong.
        ([[P, F], [P, P]], [P, P], [0, 0], [1, 1], 0.0),
        # All wrong: no one to tell whether a test is right; what passes all of them is told.
        ([[P, F], [P, P]], [F, F], [NAN, NAN], [0, 0], 0.5),
        ([[P]], [P], [0], [1], 0.0),
        # Without true tests: three agree, and vouch for each other and their test; what all pass counts nothing.
        ([[P, P, F], [P, P, F], [P, P, F], [P, F, P]], None, [0, 1, -1], [3 / 8, 3 / 8, 3 / 8, 1 / 8], 1 / 3),
        # Collusion of everyone earns nothing, nor does a single program.
        ([[P, P], [P, P]], None, [0, 0], [0, 0], 1.0),
        ([[P, F]], None, [0, 0], [0], 0.5),
    ],
)  # fmt: skip
def test_what_tests_and_programs_earn_by_hand(own, true, tests, programs, collusion):
    def whole(rows):
        return torch.tensor(rows), torch.ones(len(rows), len(rows[0]), dtype=torch.bool)

    scores = score_group(whole(own), true and whole([[each] for each in true]))
    assert scores.tests.tolist() == pytest.approx(tests, nan_ok=True)
    assert scores.programs.tolist() == pytest.approx(programs) and scores.collusion == pytest.approx(collusion)


def test_the_pool_keeps_the_most_discriminative_tests_and_is_read_as_it_was_written(tmp_path):
    right, wrong = torch.tensor([P, F, F]), torch.tensor([F, P, P])
    known, names = torch.ones(3, 5, dtype=torch.bool), ["strict", "half", "all pass", "wrong", "half2"]
    passed = torch.tensor([[P, P, P, F, P], [F, F, P, F, P], [F, P, P, F, F]])
    pool = Pool(size=2)
    pool.offer("sums", names, (passed, known), right, wrong)
    assert pool.tests["sums"] == [PooledTest("strict", 2, 2), PooledTest("half", 1, 2)]
    order = torch.tensor([4, 2, 0, 3, 1])
    turned = Pool(size=2)
    turned.offer("sums", [names[k] for k in order], (passed[:, order].flip(0), known), right.flip(0), wrong.flip(0))
    assert turned.tests == pool.tests
    # What is met again is counted; what rejects a right program later is dropped; a test that met none is not taken.
    unmet = known.clone()
    unmet[0, 4] = False
    pool.offer(
        "sums",
        ["half", "strict", "new", "new", "half2"],
        (torch.tensor([[P, F, P, P, P], [F] * 5, [F] * 5]), unmet),
        right,
        wrong,
    )
    assert pool.tests["sums"] == [PooledTest("new", 2, 2), PooledTest("half", 3, 4)]
    path = pool.write(tmp_path)
    assert Pool.read(path).tests == pool.tests and Pool.read(path).write(tmp_path) == path
    (tmp_path / "other.jsonl").write_text(path.read_text())
    for name, text, why in [
        (path.name, path.read_text().replace("half", "hulf"), "is not what it was when it was named"),
        (path.name, "{}", "is no pool of tests"),
        ("other.jsonl", path.read_text(), "not called pool-"),
        ("none.jsonl", None, "is no pool of tests"),
    ]:
        if text is not None:
            (tmp_path / name).write_text(text)
        with pytest.raises(ValueError, match=why):
            Pool.read(tmp_path / name)
    with pytest.raises(ValueError, match=r"own_weight must be in \[0, 1\], got 1.5"):
        score_group((passed, known), own_weight=1.5)
