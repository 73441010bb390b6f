"""Computations in turn: every work is done before its computation goes on, and results come in their order."""

from __future__ import annotations

import threading

import pytest
import torch

from vecenv.worldmodel.sampling.interleave import Steps, in_threads, run_all


def computation(number: int, days: int, seen: list[tuple[int, int, int]]) -> Steps:
    """Yield three works a day; the result is the sum of what they wrote."""
    total = torch.zeros(3)

    def work(place: int, day: int) -> None:
        total[place] += (number + 1) * 10**day

    for day in range(days):
        assert bool((total == (number + 1) * (10**day // 9)).all()), "a work was not done"
        seen.append((number, day, threading.get_ident()))
        yield [lambda place=place, day=day: work(place, day) for place in range(3)]
    return total


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("at_once", [1, 2, 4])
def test_results_are_those_of_one_after_the_other(threads, at_once):
    seen: list[tuple[int, int, int]] = []
    lengths = [3, 0, 5, 1, 4, 2]
    results = run_all([computation(number, days, seen) for number, days in enumerate(lengths)], threads, at_once)
    for number, (days, result) in enumerate(zip(lengths, results, strict=True)):
        assert bool((result == (number + 1) * (10**days // 9)).all())
    assert {thread for _, _, thread in seen} == {threading.get_ident()}
    begun, done, most = set(), {1}, 0
    for number, day, _ in seen:
        begun.add(number)
        if day + 1 == lengths[number]:
            done.add(number)
        most = max(most, len(begun - done))
    assert most <= min(threads, at_once)
    if threads > 1 and at_once > 1:
        assert [number for number, _, _ in seen] != sorted(number for number, _, _ in seen), "none ran in turn"


@pytest.mark.parametrize("threads", [1, 3])
def test_an_error_in_a_work_is_raised(threads):
    def failing() -> Steps:
        yield [lambda: None, lambda: 1 / 0]
        raise AssertionError("went on after a failed work")

    with pytest.raises(ZeroDivisionError):
        run_all([failing(), failing()], threads, 2)


def test_works_run_with_one_thread_each_and_leave_the_callers_number():
    threads = torch.get_num_threads()
    inside: list[int] = []

    def asking() -> Steps:
        yield [lambda: inside.append(torch.get_num_threads())]
        return torch.zeros(())

    try:
        torch.set_num_threads(3)
        run_all([asking(), asking()], 2, 2)
        assert inside == [1, 1] and torch.get_num_threads() == 3
        assert in_threads([torch.get_num_threads] * 3, 2) == [1, 1, 1] and torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("threads", [1, 2, 9])
def test_results_of_works_come_in_their_order_and_errors_are_raised(threads):
    assert in_threads([lambda number=number: number**2 for number in range(5)], threads) == [0, 1, 4, 9, 16]
    with pytest.raises(ZeroDivisionError):
        in_threads([lambda: 0, lambda: 1 // 0], threads)
