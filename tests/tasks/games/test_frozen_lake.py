"""FrozenLake against Gymnasium's transitions, searches in plain Python, and its own best policy in play."""

import pytest
import torch
from gymnasium.envs.toy_text.frozen_lake import MAPS as GYMNASIUM_MAPS
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv
from scipy.stats import chisquare

import vecenv
from vecenv.core.random import episode_key
from vecenv.learn.evaluation import evaluate
from vecenv.tasks.games.frozen_lake.agents import Blind, Planner
from vecenv.tasks.games.frozen_lake.law import (
    MAPS,
    Drawn,
    best_moves,
    blind_moves,
    drawn_bits,
    drawn_lake,
    reached,
    read_lake,
    spread,
)
from vecenv.tasks.games.frozen_lake.task import FROZEN_LAKE
from vecenv.tasks.games.grid import NO_MOVE
from vecenv.testing import check_task

SIDES = (4, 5, 8)


def make(num_envs=1, **options):
    return vecenv.make("frozen_lake", num_envs, **{"compile": False, "seed": 3} | options)


def in_bits(cell, side):
    return 8 * (cell // side) + cell % side


def moved_to(cells, action, **rules):
    """Return place, reward, terminated after one action from each cell of a fixed lake."""
    env = make(len(cells), **rules)
    state = env.rows.state.replace(place=torch.tensor(cells, dtype=torch.int32))
    env.rows = env.rows.replace(state=state)
    reward = env.advance(torch.as_tensor(action).expand(len(cells)).unsqueeze(-1))
    return env.state.place, reward, env.rows.terminated


@pytest.mark.parametrize("name", GYMNASIUM_MAPS)
def test_every_transition_is_gymnasiums(name):
    theirs = FrozenLakeEnv(map_name=name, is_slippery=True)
    side = theirs.nrow
    assert "/".join(GYMNASIUM_MAPS[name]) == MAPS[name]
    cells = [cell for cell in range(side * side) if theirs.desc[cell // side, cell % side] in b"SF"]
    # Their three outcomes in their order: to the right, as meant, to the left.
    for outcome, (slip, leaning) in enumerate([(1.0, 0.0), (0.0, 0.0), (1.0, 1.0)]):
        for action in range(4):
            place, reward, ended = moved_to(
                [in_bits(cell, side) for cell in cells], action, lake=name, slip=slip, leaning=leaning
            )
            expected = [theirs.P[cell][action][outcome] for cell in cells]
            assert place.tolist() == [in_bits(int(after), side) for _, after, _, _ in expected]
            assert reward.tolist() == [gain for *_, gain, _ in expected]
            assert ended.tolist() == [over for *_, over in expected]


@pytest.mark.parametrize(("slip", "leaning"), [(2 / 3, 0.5), (0.5, 0.2), (0.1, 1.0)])
def test_slips_are_as_frequent_as_stated(slip, leaning):
    # From the middle of the large lake, up: right and left of it are cells of their own.
    place, *_ = moved_to([8 * 4 + 4] * 40_000, 3, lake="8x8", slip=slip, leaning=leaning)
    seen = [int((place == cell).sum()) for cell in (8 * 3 + 4, 8 * 4 + 3, 8 * 4 + 5)]
    assert sum(seen) == 40_000
    expected = [share * 40_000 for share in (1 - slip, slip * leaning, slip * (1 - leaning))]
    kept = [place for place in range(3) if expected[place] > 0.5]
    assert sum(seen[place] for place in kept) == 40_000
    assert chisquare([seen[place] for place in kept], [expected[place] for place in kept]).pvalue > 1e-3


def searched(holes, start, side):
    """Return the cells that can be reached, by a search in plain Python."""
    known, open_ = {start}, [start]
    while open_:
        row, column = divmod(open_.pop(), 8)
        for y, x in ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)):
            cell = 8 * y + x
            if 0 <= y < side and 0 <= x < side and not holes >> cell & 1 and cell not in known:
                known.add(cell)
                open_.append(cell)
    return known


@pytest.mark.parametrize("side", SIDES)
def test_the_flood_is_a_search(side):
    key = episode_key(1, torch.arange(300), 0)
    holes = drawn_bits(key, 1, torch.linspace(0, 0.6, 300), side) & ~1
    found = reached(holes, torch.zeros_like(holes), side)
    for bits, flood in zip(holes.tolist(), found.tolist(), strict=True):
        assert {cell for cell in range(64) if flood >> cell & 1} == searched(bits, 0, side)


def test_the_flood_goes_the_longest_way_round():
    rows = ["SFFFFFFF", "HHHHHHHF", "FFFFFFFF", "FHHHHHHH", "FFFFFFFF", "HHHHHHHF", "FFFFFFFF", "GHHHHHHH"]
    holes, _, goal, _ = read_lake("/".join(rows))
    assert goal == 8 * 7 and len(searched(holes, 0, 8)) == 36


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("random_ends", [False, True])
def test_goals_of_drawn_lakes_can_be_reached(side, random_ends):
    lakes = drawn_lake(episode_key(2, torch.arange(400), 7), torch.tensor(0.45), side, random_ends)
    for holes, start, goal in zip(*(part.tolist() for part in lakes), strict=True):
        assert start != goal and goal in searched(holes, start, side)
    if not random_ends:
        assert set(lakes.start.tolist()) == {0} and set(lakes.goal.tolist()) == {9 * (side - 1)}


@pytest.mark.parametrize("side", SIDES)
def test_holes_are_as_frequent_as_stated(side):
    density = 0.3
    cells = spread(drawn_bits(episode_key(4, torch.arange(8_000), 0), 1, torch.tensor(density), side), side)
    seen, share = cells.sum(0).flatten().tolist(), round(density * 256) / 256
    variance = 8_000 * share * (1 - share)
    # Cells are as frequent as stated, and independent of their neighbours.
    assert all(abs(count - 8_000 * share) < 4.5 * variance**0.5 for count in seen)
    assert abs(sum(seen) - 8_000 * len(seen) * share) < 4 * (len(seen) * variance) ** 0.5
    both = (cells[:, :, 1:] & cells[:, :, :-1]).sum(0)
    assert (both / 8_000 - share * share).abs().max() < 5 * (variance / 8_000 / 8_000) ** 0.5
    full, none = (drawn_bits(episode_key(4, torch.arange(9), 0), 1, torch.tensor(float(end)), side) for end in (1, 0))
    assert spread(full, side).all() and not none.any()


def test_the_best_policy_is_that_of_gymnasiums_table():
    theirs, horizon = FrozenLakeEnv(map_name="4x4", is_slippery=True), 30
    worth = [0.0] * 16
    for _ in range(horizon):
        worth = [
            max(
                sum(p * (gain + (0 if over else worth[after])) for p, after, gain, over in theirs.P[cell][action])
                for action in range(4)
            )
            for cell in range(16)
        ]
    holes, start, goal, side = read_lake("4x4")
    lake = Drawn(*(torch.tensor([number]) for number in (holes, start, goal)))
    slip = torch.tensor([2 / 3], dtype=torch.float64)
    assert best_moves(lake, slip, torch.tensor([0.5]), side, horizon)[1].item() == pytest.approx(worth[0], abs=1e-12)


def test_the_best_policy_earns_what_it_is_worth():
    env = make(1500, random_ends=True, slip=0.4, leaning=0.8, max_steps=25)
    env.reset_groups(1500, 1, 11)
    state = env.state
    worth = best_moves(Drawn(state.holes, state.place, state.goal), state.slip, state.leaning, 4, 25)[1]
    result = evaluate(env, {"best": Planner(), "careless": Planner(careless=True)}, seed=11)
    earned = result.records["best"].reward
    deviation = (worth * (1 - worth)).sum().sqrt() / 1500
    assert 0.3 < worth.mean() < 0.99
    assert abs(earned.mean() - worth.mean()) < 3.5 * deviation
    assert result.records["careless"].reward.mean() < earned.mean()


def test_of_blind_rules_the_best_one_is_found():
    env = make(64, max_steps=30)
    state = env.state
    lakes = (Drawn(state.holes, state.place, state.goal), state.slip, state.leaning, 4)
    moves = blind_moves(*lakes, 30).tolist()

    def arrives(rule):
        """Return the probability by a walk of probabilities in plain Python."""
        total = 0.0
        for holes in state.holes.tolist():
            at, arrived = {0: 1.0}, 0.0
            for _ in range(30):
                after: dict[int, float] = {}
                for cell, chance in at.items():
                    for turn in (0, 1, 3):
                        y, x = divmod(cell, 4)
                        dy, dx = ((0, -1), (1, 0), (0, 1), (-1, 0))[(rule[cell] + turn) % 4]
                        y, x = min(max(y + dy, 0), 3), min(max(x + dx, 0), 3)
                        if (y, x) == (3, 3):
                            arrived += chance / 3
                        elif not holes >> (8 * y + x) & 1:
                            after[4 * y + x] = after.get(4 * y + x, 0.0) + chance / 3
                at = after
            total += arrived / 64
        return total

    found = arrives(moves)
    others = [[*moves[:cell], move, *moves[cell + 1 :]] for cell in (0, 6) for move in range(4)]
    assert found == pytest.approx(max(map(arrives, others)), abs=1e-9)
    played = evaluate(env, {"blind": Blind(), "best": Planner()}, seed=3)
    blind, best = (played.records[name].reward.mean().item() for name in ("blind", "best"))
    assert 0.1 < found < 0.9 and abs(blind - found) < 3.5 * (found * (1 - found) / 64) ** 0.5 and blind < best


def test_without_slips_the_best_way_is_the_shortest():
    env = make(1, lake="8x8", slip=0.0)
    result = evaluate(env, {"best": Planner(), "careless": Planner(careless=True)})
    assert {name: (record.reward.item(), record.length.item()) for name, record in result.records.items()} == {
        "best": (1, 14),
        "careless": (1, 14),
    }


def test_several_moves_of_an_answer_are_those_one_by_one():
    lake, moves = "SFFF/FHFH/FFFH/HFFG", [1, 1, 2, 1, 2, 2, 0]
    env, single = make(1, lake=lake, slip=0.0, answer_moves=7, format_penalty=0.25), make(1, lake=lake, slip=0.0)
    env.advance(torch.full((1, 7), NO_MOVE))
    assert env.state.place.item() == 0 and env.state.steps.item() == 1 and not env.state.valid.item()
    reward = env.advance(torch.tensor([moves]))
    for move in moves[:6]:
        assert not single.rows.done.item()
        single.advance(torch.tensor([[move]]))
    # The last one is not made: the goal was reached before it.
    assert single.rows.terminated.item() and env.rows.terminated.item() and reward.item() == 1
    assert env.state.place.item() == single.state.place.item() == 8 * 3 + 3
    assert env.state.steps.item() == single.state.steps.item() + 1 and env.state.valid.item()


def test_an_invalid_answer_costs_what_is_stated():
    env = make(1, answer_moves=2, format_penalty=0.25)
    assert env.advance(torch.full((1, 2), NO_MOVE)).item() == -0.25
    info = env.engine.bound().info(env.rows)
    assert not info["action_is_valid"].item() and not info["action_is_effective"].item()


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"size": 3}, "size must be"),
        ({"slip": 1.1}, "slip must be"),
        ({"density": -0.1}, "density must be"),
        ({"lake": "9x9"}, "4 to 8 rows of as many cells"),
        ({"lake": "SFFF/FFFF/FFFF/FFFF"}, "must have one goal G, not 0"),
        ({"lake": "SFFF/FFFF/SFFF/FFFG"}, "must have one start S, not 2"),
        ({"lake": "SFXF/FFFF/FFFF/FFFG"}, "cells S, F, H and G, not 'X'"),
        ({"lake": "SFHF/FHFF/HFFF/FFFG"}, "no way from S to G"),
        ({"params": {"slip": torch.tensor([0.1, 1.5])}}, "slip"),
    ],
)
def test_bad_input_is_refused(options, fault):
    with pytest.raises(ValueError, match=fault):
        make(2, **options)


def test_rows_slip_by_parameters_of_their_own():
    env = make(2, lake="8x8", params={"slip": torch.tensor([0.0, 1.0]), "leaning": torch.tensor([0.5, 1.0])})
    env.advance(torch.tensor([[2], [2]]))
    assert env.state.place.tolist() == [1, 0]
    assert "0% to the right" in FROZEN_LAKE.text(env.scenario).instructions(env.state)[1]


CONFIGS = [
    {"size": 8, "observation": "bits", "random_ends": True},
    pytest.param({"lake": "4x4", "observation": "pixels"}, marks=pytest.mark.nightly),
]


@pytest.mark.parametrize("options", CONFIGS)
def test_it_conforms(options):
    check_task("frozen_lake", steps=6, compiled=False, **options)


def test_bits_tell_what_planes_do():
    cells, planes, bits = (make(50, observation=kind, random_ends=True) for kind in ("cells", "planes", "bits"))
    seen, packed = planes.observations(), bits.observations()
    assert torch.equal(seen["board"].flatten(1), cells.observations()["board"])
    rows = (packed["holes"].unsqueeze(-1) >> torch.arange(4)) & 1
    assert torch.equal(rows.bool(), seen["board"][:, 2])
    cells = 8 * torch.arange(4).unsqueeze(-1) + torch.arange(4)
    for plane, name in enumerate(("place", "goal")):
        assert torch.equal(seen["board"][:, plane], cells == packed[name][:, None])


def test_what_is_around_the_player_is_the_lake_seen_from_there():
    around, planes = (make(60, observation=kind, random_ends=True, size=5) for kind in ("around", "planes"))
    seen = around.observations()["board"].view(60, 3, 9, 9)
    for row in range(60):
        (y, x), board = divmod(around.state.place[row].item(), 8), planes.observations()["board"][row]
        part = seen[row, :, 4 - y : 9 - y, 4 - x : 9 - x]
        assert torch.equal(part[:2], board[1:]) and not part[2].any()
        assert seen[row, 2].sum() == 81 - 25 and seen[row, :2].sum() == board[1:].sum()
