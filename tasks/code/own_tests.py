"""Tests that agents write: what a test and a program earn by the matrix of programs and tests, and a pool of the best.

A policy writes n programs and m tests for a problem; `Verifier.matrix` says which program passes which test, and where
the sandbox failed. `score_group` pays all members of a group by it: tests by how they separate right programs from
wrong ones, programs by the true tests and by what the others' tests found. Without true tests, programs that agree
stand for the right ones. All rewards are unknown (NaN) where the sandbox's failures leave nothing to tell them by.

Sources: Wang et al. 2025, "Co-Evolving LLM Coder and Unit Tester via Reinforcement Learning" (arXiv:2506.03136) of
`separation`; Chen et al. 2022, "CodeT: Code Generation with Generated Tests" (arXiv:2207.10397) of `agreement`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

Cells = tuple[Tensor, Tensor]
"""Which of n programs pass which of m tests, and where that is known, as of `Verifier.matrix`. Shape: (n, m), bool."""


def standing(passed: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
    """Return which programs pass all true tests, and which fail one; of the others it is not known. Shape: (n,)."""
    return (passed & known).all(1) & (known.shape[1] > 0), (known & ~passed).any(1)


def separation(passed: Tensor, known: Tensor, right: Tensor, wrong: Tensor) -> Tensor:
    """Return how well each test separates right programs from wrong ones, in [-1, 1]. Shape: (m,), float64.

    A test that no right program fails is worth the share of wrong programs that it rejects; one that a right program
    fails, minus the share of wrong ones that it accepts. That is Wang et al.'s reward of a test, divided by the number
    of wrong programs. So a test that passes all, or rejects all, earns 0, and one that is right the wrong way round
    -1. It is 0 if there is no wrong program, and unknown if it met no right one, or none of the wrong ones there are.

    Args:
        passed: which programs pass which tests. Shape: (n, m), bool.
        known: where that is known. Shape: (n, m), bool.
        right: the right programs. Shape: (n,), bool.
        wrong: the wrong ones. Shape: (n,), bool.
    """
    of_right, of_wrong = known & right[:, None], known & wrong[:, None]
    refuted = (of_right & ~passed).any(0)
    met, rejected = of_wrong.sum(0), (of_wrong & ~passed).sum(0)
    worth = torch.where(refuted, rejected - met, rejected).double() / met.clamp(min=1)
    return worth.masked_fill(~of_right.any(0) | ((met == 0) & wrong.any()), torch.nan)


class Agreement(NamedTuple):
    """What programs are worth by agreement, and which are accepted and which not. Shape of each: (n,)."""

    worth: Tensor
    accepted: Tensor
    others: Tensor


def agreement(passed: Tensor, known: Tensor) -> Agreement:
    """Return what programs are worth without true tests: programs that pass the same tests vouch for each other.

    Only tests that some programs pass and some fail count, so nothing is earned by tests that all pass. Programs that
    pass the same of them are a set; a member of one is worth (size of the set × tests passed) / (programs × tests), and
    the members of the best set, or sets, are accepted: Chen et al.'s dual execution agreement. Tests without any known
    cell are left out; programs with an unknown cell in another test are worth NaN. Shape of both: (n, m), bool.
    """
    asked = known.any(0)
    told = (known | ~asked).all(1)
    rows = passed[told][:, asked]
    rows = rows[:, rows.any(0) & ~rows.all(0)]
    alike = (rows[:, None] == rows[None]).all(2).sum(1)
    count = alike * rows.sum(1)
    worth = torch.full((len(passed),), torch.nan, dtype=torch.float64)
    worth[told] = count.double() / max(1, rows.numel())
    accepted = torch.zeros_like(told)
    accepted[told] = (count == count.amax()) & (count > 0) if len(count) else False
    return Agreement(worth, accepted, told & ~accepted)


class GroupScores(NamedTuple):
    """Rewards of a group, NaN where unknown: such a member is to be left out.

    Attributes:
        programs: in [0, 1]. Shape: (n,), float64.
        tests: in [-1, 1]. Shape: (m,), float64.
        right: programs that pass all true tests; without any, those that agree. Shape: (n,), bool.
        wrong: the others, of which it is known. Shape: (n,), bool.
        collusion: share of tests that all programs pass; with true tests, if one of the programs is wrong, else 0.
    """

    programs: Tensor
    tests: Tensor
    right: Tensor
    wrong: Tensor
    collusion: float


def score_group(own: Cells, true: Cells | None = None, own_weight: float = 0.2) -> GroupScores:
    """Pay n programs and m tests of one problem by what they make of each other.

    With true tests a program earns (1 - ``own_weight``) × the share of true tests that it passes + ``own_weight`` × the
    share of own tests that it passes, each counted by its `separation` where that is positive; the share of true tests
    alone, if no test separates. Its reward is unknown if one of its true cells is. Without true tests it earns its
    `agreement`, and tests are paid by how they separate the accepted ones.

    Args:
        own: of the programs on the tests that were written with them.
        true: of the same programs on the problem's tests; None where there are none.
        own_weight: of own tests in a program's reward, in [0, 1].

    Raises:
        ValueError: the weight is out of its range.
    """
    if not 0 <= own_weight <= 1:
        raise ValueError(f"own_weight must be in [0, 1], got {own_weight!r}")
    passed, known = own
    unseparated = (passed | ~known).all(0) & known.any(0)
    if true is None:
        worth, right, wrong = agreement(passed, known)
        tests = separation(passed, known, right, wrong)
        # Where nothing separates there is no one to accept: tests that all pass, or all fail, earn nothing.
        tests = torch.where(known.any(0) & wrong.any() & ~right.any(), 0.0, tests)
        collusive = unseparated
    else:
        right, wrong = standing(*true)
        tests = separation(passed, known, right, wrong)
        power = tests.nan_to_num(0.0).clamp(min=0.0) * known
        sums = power.sum(1)
        shares = true[0].double().mean(1).masked_fill(~true[1].all(1), torch.nan)
        found = (power * passed).sum(1) / sums.clamp(min=torch.finfo(torch.float64).tiny)
        worth = torch.where(sums > 0, (1 - own_weight) * shares + own_weight * found, shares)
        collusive = unseparated & wrong.any()
    asked = int(known.any(0).sum())
    return GroupScores(worth, tests, right, wrong, int(collusive.sum()) / asked if asked else 0.0)


class PooledTest(NamedTuple):
    """A test of the pool, and the wrong programs that it has met and rejected; it rejected no right one."""

    code: str
    rejected: int
    met: int

    @property
    def rank(self) -> tuple[float, int, str]:
        """What the best test has the least of: one that has met few programs ranks below an equal that met many."""
        return -self.rejected / (self.met + 1), len(self.code), self.code


class Pool:
    """The most discriminative tests of each problem, which later rollouts meet.

    It is bounded, and depends on what was offered alone, not on the order of the tests or programs of an offer.

    Attributes:
        size: most tests of a problem.
        tests: by the name of the problem, best first.
    """

    def __init__(self, size: int = 8, tests: Mapping[str, Iterable[PooledTest]] | None = None) -> None:
        self.size = size
        self.tests = {name: sorted(kept, key=lambda test: test.rank)[:size] for name, kept in (tests or {}).items()}

    def offer(
        self,
        problem: str,
        tests: Sequence[str],
        own: Cells,
        right: Tensor,
        wrong: Tensor,
        shipped: Tensor | None = None,
    ) -> None:
        """Keep the tests of a group that rejected a wrong program and no right one; drop what rejected a right one.

        Args:
            problem: its name.
            tests: their code; of equal ones the first counts.
            own: of the group's programs on them, and on tests of the pool if these are among ``tests``.
            right: as of `GroupScores`.
            wrong: as of `GroupScores`.
            shipped: programs of the problem itself, which come with every offer: a test counts them once, when it is
                taken. Shape: (n,), bool.
        """
        passed, known = own
        fresh = torch.ones_like(wrong) if shipped is None else ~shipped
        kept = {test.code: test for test in self.tests.get(problem, ())}
        for place, code in enumerate(tests):
            if code in tests[:place]:
                continue
            failed = known[:, place] & ~passed[:, place]
            before = kept.get(code, PooledTest(code, 0, 0))
            counted = wrong & fresh if code in kept else wrong
            met, rejected = int((known[:, place] & counted).sum()), int((failed & counted).sum())
            if bool((failed & right).any()):
                kept.pop(code, None)
            elif code in kept or (rejected and bool((known[:, place] & right).any())):
                kept[code] = PooledTest(code, before.rejected + rejected, before.met + met)
        self.tests[problem] = sorted(kept.values(), key=lambda test: test.rank)[: self.size]

    def write(self, folder: Path | str) -> Path:
        """Write a file whose name tells what is in it, so that a config with its path is exact; return the path."""
        lines = [json.dumps({"size": self.size})]
        lines += [json.dumps({"problem": name, "tests": kept}) for name, kept in sorted(self.tests.items())]
        text = "\n".join(lines) + "\n"
        path = Path(folder) / f"pool-{_digest(text)}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    @classmethod
    def read(cls, path: Path | str) -> Pool:
        """Return the pool of a file; ValueError if it is none, or has changed since it was named."""
        path = Path(path)
        try:
            text = path.read_text()
            first, *lines = map(json.loads, text.splitlines())
            tests = {line["problem"]: [PooledTest(*test) for test in line["tests"]] for line in lines}
            pool = cls(first["size"], tests)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is no pool of tests: {error}") from error
        if path.stem != f"pool-{_digest(text)}":
            raise ValueError(f"{path} is not what it was when it was named, or not called pool-{_digest(text)}.jsonl")
        return pool


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
