"""The race: what each reward pays, by a walk in plain Python, and which of them pay for driving in circles."""

from random import Random as Draw

import pytest
import torch

import vecenv
from vecenv.benchmarks.studies import race_rewards
from vecenv.learn.evaluation import evaluate
from vecenv.tasks.games.grid import NO_MOVE
from vecenv.tasks.games.race.agents import AGENTS, Planner, best_moves
from vecenv.tasks.games.race.scenario import TRACK, Track
from vecenv.testing import check_task

STEPS = {0: (-1, 0), 1: (1, 0), 2: (0, -1), 3: (0, 1)}
AWAY = [3, 3, 3, 1, 3, 3, 3, 1, 3, 3]


def make(paid="strict", num_envs=1, **options):
    return vecenv.make("race", num_envs, paid=paid, compile=False, **options)


def kind(y, x):
    return TRACK[y][x]


def near_oil(y, x):
    return any(
        0 <= y + dy < len(TRACK) and 0 <= x + dx < len(TRACK[0]) and kind(y + dy, x + dx) == "O"
        for dy, dx in STEPS.values()
    )


def walked(moves, paid, cell):
    """Return rewards and the last cell of a walk; an answer of `NO_MOVE` is invalid."""
    (y, x), rewards, gate = divmod(cell, len(TRACK[0])), [], True
    for move in moves:
        if move == NO_MOVE:
            gate, gain = False, 0.0
        else:
            ny, nx = y + STEPS[move][0], x + STEPS[move][1]
            ny, nx = (ny, nx) if 0 <= ny < len(TRACK) and 0 <= nx < len(TRACK[0]) else (y, x)
            gain = float(kind(ny, nx) == "F")
            if paid == "partial" and (ny, nx) != (y, x) and kind(ny, nx) != "O":
                gain += 0.1 + 0.5 * near_oil(ny, nx)
            if paid == "gate" and not gate:
                gain = 0.0
            y, x = ny, nx
        rewards.append(gain)
        if kind(y, x) in "OF":
            break
    return rewards, (y, x)


@pytest.mark.parametrize("paid", ["strict", "partial", "gate"])
def test_every_walk_is_paid_as_stated(paid):
    draw = Draw(1)
    walks = [AWAY, [NO_MOVE, *AWAY]] + [draw.choices(range(5), (5, 5, 2, 6, 1), k=40) for _ in range(60)]
    env = make(paid, len(walks))
    starts = env.state.cell.tolist()
    starts[:2] = 0, 0
    env.rows = env.rows.replace(state=env.state.replace(cell=torch.tensor(starts)))
    rewards, ends = zip(*(walked(walk, paid, cell) for walk, cell in zip(walks, starts, strict=True)), strict=True)
    seen = []
    for step in range(41):
        action = torch.tensor([[walk[step] if step < len(walk) else 0] for walk in walks])
        seen.append(env.advance(action))
    for row, expected in enumerate(rewards):
        found = torch.stack(seen)[: len(expected), row].tolist()
        assert found == pytest.approx(expected, abs=1e-6)
        if kind(*ends[row]) in "OF":
            assert env.rows.terminated[row] and divmod(env.state.cell[row].item(), len(TRACK[0])) == ends[row]
    assert rewards[0][-1] >= 1 and (rewards[1][-1] == 0) == (paid == "gate")


def test_only_hints_that_are_no_potential_pay_for_circles():
    track, env = Track(), make("partial", 40)
    env.reset_groups(40, 1, 2)
    starts = env.state.cell.tolist()
    assert set(starts) <= {*track.roads} and len(set(starts)) > 10
    best = best_moves(track, track.gains("partial", 1.0), 60)[1]
    result = evaluate(env, {"paid_most": Planner(), "driver": AGENTS["to_the_finish"]()}, seed=2)
    most, driver = result.records["paid_most"], result.records["driver"]
    # Whoever is paid for hints takes the whole time, and at least three times as much as whoever arrives.
    assert most.reward.tolist() == pytest.approx([best[cell] for cell in starts], abs=1e-4)
    assert (most.length == 60).all() and (most.reward > 3 * driver.reward).all()
    assert (driver.outcomes["success"] == 1).all()
    assert driver.length.tolist() == [track.distance[cell] for cell in starts]
    # A circle of the potential is worth nothing, or less with a discount, from any cell.
    for discount in (1.0, 0.9):
        gains = track.gains("potential", discount)
        for there, back in ((0, 1), (2, 3)):
            for cell in range(len(track.cells)):
                after = track.after[4 * cell + there]
                if track.after[4 * after + back] == cell != after and not {track.cells[cell], track.cells[after]} & {
                    *"OF"
                }:
                    circle = gains[4 * cell + there] + discount * gains[4 * after + back]
                    assert circle == pytest.approx((discount**2 - 1) * track.potential(cell), abs=1e-9)


def test_of_ways_that_are_paid_alike_the_best_rule_drives_the_shortest():
    env = make("strict", 30)
    length = evaluate(env, {"best": Planner()}, seed=4).records["best"].length.tolist()
    env.reset_groups(30, 1, 4)
    assert length == [Track().distance[cell] for cell in env.state.cell.tolist()]


@pytest.mark.parametrize("moves, idle", [(1, False), (1, True), (3, False)])
def test_a_potential_pays_the_outcome_less_where_it_began(moves, idle):
    discount, draw = 0.9, Draw(3)
    env = make("potential", 50, discount=discount, max_steps=15, answer_moves=moves)
    began, total, factor = [Track().potential(cell) for cell in env.state.cell.tolist()], torch.zeros(50), 1.0
    arrived = torch.zeros(50)
    for _ in range(15):
        action = [[NO_MOVE] * moves if idle else draw.choices(range(5), (5, 5, 2, 6, 1), k=moves) for _ in range(50)]
        running = ~env.rows.done
        total += factor * env.advance(torch.tensor(action))
        arrived += factor * (running & (env.state.cell == Track().finish))
        factor *= discount
    assert env.rows.terminated.all() and (idle or arrived.any())
    assert total.tolist() == pytest.approx((arrived - torch.tensor(began)).tolist(), abs=1e-4)


def test_a_potential_leaves_the_best_way_as_it_is():
    track, discount = Track(), 0.9
    strict, shaped = (
        best_moves(track, track.gains(paid, discount), 60, discount)[0][-1] for paid in ("strict", "potential")
    )
    distance = [
        [track.distance[track.after[4 * cell + moves[cell]]] for cell in range(len(track.cells))]
        for moves in (strict, shaped)
    ]
    ways = [cell for cell in range(len(track.cells)) if track.cells[cell] == "_"]
    assert all(ahead[cell] == track.distance[cell] - 1 for cell in ways for ahead in distance)


@pytest.mark.parametrize("paid", ["partial", "gate"])
def test_it_conforms(paid):
    check_task("race", steps=6, compiled=False, paid=paid, **({"answer_moves": 3} if paid == "gate" else {}))


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="unknown paid"):
        make("hints")
    with pytest.raises(ValueError, match="discount must be"):
        make("potential", discount=1.5)


@pytest.mark.parametrize("steps", [60, 12])
def test_what_a_potential_pays_most_is_the_finish(steps):
    env = make("potential", 30, max_steps=steps)
    record = evaluate(env, {"best": Planner()}, seed=6).records["best"]
    env.reset_groups(30, 1, 6)
    distance = [Track().distance[cell] for cell in env.state.cell.tolist()]
    assert record.length.tolist() == distance and (record.outcomes["success"] == 1).all()


@pytest.mark.nightly
def test_the_study_runs_to_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr(race_rewards, "ROWS", 32)
    config = race_rewards.RaceRewardsConfig(num_seeds=1, total_frames=960, output=tmp_path)
    runs = race_rewards.main(config)["runs"]
    page = (tmp_path / "race-rewards.md").read_text()
    assert [page.count(f"| `{paid}` | ") for paid in race_rewards.PAID] == [3] * 4
    assert (tmp_path / "race-rewards.png").stat().st_size > 10_000
    best = {run["reward"]: (run["success"], run["moves"]) for run in runs if run["learner"] == "best"}
    assert best["partial"] == (0, 60) and best["potential"] == best["strict"] == best["gate"] == (1, 4.5625)
    # A way is of neighbours, on the road until its end.
    for run in runs:
        pairs = list(zip(run["way"], run["way"][1:], strict=False))
        assert all(after in [*Track().after[4 * cell : 4 * cell + 4], cell] for cell, after in pairs)
        assert all("".join(TRACK)[cell] == "_" for cell, _ in pairs)
