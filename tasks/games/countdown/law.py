r"""The law of Countdown: settings, state, combinations of two numbers, and puzzles that are solvable by construction.

A number is a pair of integers, numerator and denominator, not reduced. One that comes of $k$ given numbers, each of 1
to $L$, has both parts at most $2^{k-1} L^k$ in size: of a sum $a/b + c/d = (ad + cb)/(bd)$ of $i$ and $j$ of them the
numerator is at most $2 \cdot 2^{i-1} L^i \cdot 2^{j-1} L^j = 2^{i+j-1} L^{i+j}$, and of products and quotients both
parts are smaller. With 6 numbers up to 100 this is $3.2 \cdot 10^{13}$. A number is compared with a target $t$ by $p =
t q$; since $t \le 6 \cdot 10^4$ (`draw`), that is below $2 \cdot 10^{18} < 2^{63}$. So int64 holds all of it.

Nothing divides by zero: a quotient by zero is the pair (0, 0), as is whatever is made of it, and is no target.
"""

from __future__ import annotations

from itertools import combinations, permutations

import torch
from tensordict import TensorClass
from torch import Tensor

from vecenv.core.random import EpisodeKey, randint, random_bits
from vecenv.tasks.games.countdown.config import CountdownConfig

OPERATORS = "+-*/"
ADD, SUBTRACT, MULTIPLY, DIVIDE = range(4)

_PUZZLES = 8
"""Puzzles that are drawn for an episode, of which the first with a fitting target is taken."""


class Puzzle(TensorClass):
    """State of an episode with S slots.

    Attributes:
        given: numbers, 0 in slots beyond the level. Shape: (S,), int64.
        target: shape (), int64.
        proof: moves that make the target, then 0. Shape: (S - 1,), int64.
        top: numerators of what there is now. Shape: (S,), int64.
        bottom: denominators. Shape: (S,), int64.
        there: slots that have a number. Shape: (S,), bool.
        formed: whether an expression was formed, of any value. Shape: (), bool.
        solved: shape (), bool.
        valid: whether the last action was valid. Shape: (), bool.
        invalid: number of invalid actions. Shape: (), int64.
        steps: moves, a whole expression for all of an attempt. Shape: (), int64.
    """

    given: Tensor
    target: Tensor
    proof: Tensor
    top: Tensor
    bottom: Tensor
    there: Tensor
    formed: Tensor
    solved: Tensor
    valid: Tensor
    invalid: Tensor
    steps: Tensor


def moves_of(slots: int) -> list[tuple[int, int, int]]:
    """Return the left slot, the right slot and the operator of every move but 0, which is none.

    Sums and products have the lower slot on the left. What comes of a move is in the lower slot.
    """
    symmetric = [(*pair, operator) for operator in (ADD, MULTIPLY) for pair in combinations(range(slots), 2)]
    return symmetric + [(*pair, operator) for operator in (SUBTRACT, DIVIDE) for pair in permutations(range(slots), 2)]


def move_tables(slots: int) -> dict[str, Tensor]:
    """Return ``moves``, (M + 1, 3), by number, 0 being slot 0 with itself, and ``move_number``, (S * S * 4,)."""
    moves = moves_of(slots)
    number = torch.zeros(slots, slots, 4, dtype=torch.int64)
    for place, (left, right, operator) in enumerate(moves, 1):
        number[left, right, operator] = place
        if operator in (ADD, MULTIPLY):
            number[right, left, operator] = place
    return {"moves": torch.tensor([(0, 0, 0), *moves]), "move_number": number.flatten()}


def combined(left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor], operator: Tensor) -> tuple[Tensor, Tensor]:
    """Return numerator and denominator of ``left OPERATOR right``; (0, 0) of a quotient by zero. Shape: any, int64."""
    (a, b), (c, d) = left, right
    ad, cb, bd = a * d, c * b, b * d
    divides, by_zero = operator == DIVIDE, c == 0
    product = torch.where(operator == MULTIPLY, a * c, torch.where(operator == ADD, ad + cb, ad - cb))
    return torch.where(divides, torch.where(by_zero, 0, ad), product), torch.where(divides, cb, bd)


def is_target(top: Tensor, bottom: Tensor, target: Tensor) -> Tensor:
    """Return whether numbers are the target. Shape: any."""
    return (bottom != 0) & (top == target * bottom)


def moved(
    numbers: tuple[Tensor, Tensor, Tensor], move: Tensor, moves: Tensor
) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor, tuple[Tensor, Tensor]]:
    """Return numerators, denominators and slots in use after a move, whether it could be made, and what came of it.

    A move of a slot without a number, and none, 0, change nothing.

    Args:
        numbers: numerators, denominators and slots in use. Shape of each: (S,).
        move: shape (), int64.
        moves: of `move_tables`.
    """
    top, bottom, there = numbers
    left, right, operator = moves.index_select(0, move.reshape(1))[0].unbind(-1)
    places = torch.arange(len(top), device=top.device)
    is_left, is_right = places == left, places == right

    def of(values: Tensor, chosen: Tensor) -> Tensor:
        return torch.where(chosen, values, 0).sum()

    made = combined((of(top, is_left), of(bottom, is_left)), (of(top, is_right), of(bottom, is_right)), operator)
    known = (move > 0) & (there & is_left).any() & (there & is_right).any()
    kept = known & (places == torch.minimum(left, right))
    gone = known & (places == torch.maximum(left, right))
    return (torch.where(kept, made[0], top), torch.where(kept, made[1], bottom), there & ~gone), known, made


def draw(key: EpisodeKey, level: Tensor, config: CountdownConfig, move_number: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Draw numbers, a target and the moves that make it.

    Two of the numbers that there are, and an operator, are drawn `level` - 1 times; the greater one is on the left. A
    quotient that is not whole, or is by 1, becomes a product; a product by 1, or above the highest target, a
    difference; a difference of equals a sum. So all is positive and whole, and a sum of k numbers at most k times the
    highest target or number. Of `_PUZZLES` such the first is taken whose target is from the lowest to the highest one
    and none of the numbers, or the last.

    Args:
        key: of the episode.
        level: how many numbers, 2 to S. Shape: (), int64.
        config: of the task.
        move_number: of `move_tables`.

    Returns:
        Numbers, (S,), target, (), and moves, (S - 1,), all int64.
    """
    slots, device = config.slots, level.device
    places = torch.arange(slots, device=device)
    index = torch.arange(_PUZZLES, device=device).unsqueeze(-1) * slots + places
    # A block of random words has one for each of the three draws of a step.
    words = random_bits(key, 1, index)[:3]
    there = (places < level).expand(_PUZZLES, slots)
    given = torch.where(there, 1 + randint(key, 0, config.largest, index), 0)
    values, target, proof = given, given[:, 0], []
    for step in range(slots - 1):
        left_over = (level - step).clamp(min=2)
        first, second = (words[0][:, step] * left_over) >> 32, (words[1][:, step] * (left_over - 1)) >> 32
        operator = (words[2][:, step] * 4) >> 32
        second = second + (second >= first)
        rank = there.cumsum(-1)
        one, other = (there & (rank == chosen.unsqueeze(-1) + 1) for chosen in (first, second))
        a, b = ((values * chosen).sum(-1) for chosen in (one, other))
        i, j = ((places * chosen).sum(-1) for chosen in (one, other))
        swapped = a < b
        a, b, i, j = torch.maximum(a, b), torch.minimum(a, b), torch.where(swapped, j, i), torch.where(swapped, i, j)
        # Beyond the level there is no second number: whatever is computed is not kept.
        divisor = b.clamp(min=1)
        operator = torch.where((operator == DIVIDE) & ((a % divisor != 0) | (b <= 1)), MULTIPLY, operator)
        operator = torch.where(
            (operator == MULTIPLY) & ((b <= 1) | (a * b > config.highest_target)), SUBTRACT, operator
        )
        operator = torch.where((operator == SUBTRACT) & (a == b), ADD, operator)
        quotient = torch.div(a, divisor, rounding_mode="floor")
        made = torch.where(operator == DIVIDE, quotient, torch.where(operator == MULTIPLY, a * b, a + b))
        made = torch.where(operator == SUBTRACT, a - b, made)
        going_on = step < level - 1
        proof.append(torch.where(going_on, move_number[(i * slots + j) * 4 + operator], 0))
        low, high = (order(i, j).unsqueeze(-1) for order in (torch.minimum, torch.maximum))
        values = torch.where(going_on & (places == low), made.unsqueeze(-1), values)
        there = there & ~(going_on & (places == high))
        target = torch.where(going_on, made, target)
    fits = (target >= config.lowest_target) & (target <= config.highest_target)
    fits = fits & (given != target.unsqueeze(-1)).all(-1)
    chosen = torch.where(fits.any(), fits.int().argmax(-1), _PUZZLES - 1).reshape(1)
    return tuple(part.index_select(0, chosen)[0] for part in (given, target, torch.stack(proof, -1)))  # type: ignore[return-value]
