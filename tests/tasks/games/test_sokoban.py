import random

import pytest
import torch

import vecenv
from tests.tasks.games.sokoban_oracle import Oracle
from vecenv.core.random import episode_key
from vecenv.tasks.games.sokoban.agents import AGENTS, boards_of
from vecenv.tasks.games.sokoban.boards import _library, made_boards, walked
from vecenv.tasks.games.sokoban.config import SokobanConfig
from vecenv.tasks.games.sokoban.law import Grid, count
from vecenv.tasks.games.sokoban.scenario import Sokoban, drawn_number
from vecenv.tasks.games.sokoban.solver import pushes_of, solution
from vecenv.testing import check_interaction, check_task

SMALL = {"num_boxes": 2, "boards": 64}
SYMBOLS = str.maketrans("_O√XPS", " .*$@+")
LEVELS = """\
; one push
#####
#@$.#
#####

Two boxes
  #####
###   #
# $ # ##
# #    #
# .  .$@#
#########
"""


def drawn(env):
    """Return the boards of an environment in the notation of level files."""
    kinds, symbols = env.scenario.board(env.state), env.scenario.symbols
    return [["".join(symbols[kind] for kind in row).translate(SYMBOLS) for row in board] for board in kinds.tolist()]


def test_contracts():
    check_task("sokoban", compiled=False, **SMALL)


def test_conversations():
    check_interaction("sokoban", **SMALL, dim_room=(7, 8), max_steps=20)


@pytest.mark.assembly
def test_compiled():
    check_task("sokoban", num_boxes=2, boards=64, dim_room=(9, 10))


def law_against_oracle(rows, steps, words=None, answer_moves=0, **settings):
    """Play random moves and return the number of transitions that were compared."""
    task = vecenv.Task(name="words", version="1", scenario=lambda config: Sokoban(config, words))
    config = SokobanConfig(**settings, answer_moves=answer_moves, max_steps=10_000, search_depth=60)
    env = vecenv.make(task, rows, compile=False, config=config)
    oracles = [Oracle(board, box_reward=config.box_reward) for board in drawn(env)]
    draw, over = random.Random(3), [False] * rows
    for _ in range(steps):
        moves = [[draw.randrange(5 if answer_moves else 4) for _ in range(max(1, answer_moves))] for _ in oracles]
        reward, info = env.advance(torch.tensor(moves)), env.info()
        seen = zip(
            drawn(env), reward.tolist(), *(info[n].tolist() for n in ("success", "deadlock", "action_is_effective")),
            strict=True,
        )  # fmt: skip
        for row, (board, paid, *told) in enumerate(seen):
            if over[row]:
                assert paid == 0
                continue
            oracle, earned, effective = oracles[row], 0.0, False
            for number, move in enumerate(moves[row]):
                if number == 0 or (move < 4 and not oracle.solved):
                    earned += oracle.step(move)
                    effective |= oracle.effective
            assert board == oracle.drawn()
            assert told == [oracle.solved, oracle.deadlocked, effective]
            assert paid == pytest.approx(earned, abs=1e-5)
            over[row] = oracle.solved
    return rows * steps


@pytest.mark.parametrize("size, words", [((7, 7), 1), ((9, 10), 1), ((8, 8), 2), ((10, 10), 2), ((9, 10), 3)])
def test_the_law_is_the_oracle_by_any_number_of_words(size, words):
    law_against_oracle(24, 40, words, dim_room=size, num_boxes=3, boards=24, layout="walls")


def test_answers_of_several_moves_end_with_the_solution():
    law_against_oracle(48, 20, answer_moves=3, num_boxes=1, boards=48)


def test_what_a_box_on_a_target_earns_is_a_setting():
    law_against_oracle(48, 20, num_boxes=1, boards=48, box_reward=0.0)
    law_against_oracle(48, 20, answer_moves=3, num_boxes=3, boards=48, box_reward=2.5)
    env = vecenv.make("sokoban", 1, compile=False, **SMALL, box_reward=0.0)
    assert "onto a target earns" not in env.scenario.goal(env.rows.state)[0]


@pytest.mark.nightly
def test_the_law_is_the_oracle_over_many_transitions():
    for layout in ("rooms", "walls", "open"):
        law_against_oracle(400, 300, num_boxes=4, dim_room=(8, 8), boards=400, layout=layout)


def test_mask_allows_the_moves_with_an_effect():
    env = vecenv.make("sokoban", 64, compile=False, **SMALL)
    for board, mask in zip(drawn(env), env.observations()["mask"].tolist(), strict=True):
        effective = []
        for move in range(4):
            (oracle := Oracle(board)).step(move)
            effective.append(oracle.effective)
        assert mask == (effective if any(effective) else [True] * 4)


@pytest.mark.parametrize("size, words", [((6, 7), 1), ((9, 10), 2)])
def test_what_is_around_the_player(size, words):
    task = vecenv.Task(name="words", version="1", scenario=lambda config: Sokoban(config, words))
    config = SokobanConfig(dim_room=size, num_boxes=2, boards=16, observation="around")
    env = vecenv.make(task, 16, compile=False, config=config)
    env.advance(torch.arange(16).unsqueeze(-1) % 4)
    height, width = size[0] - 3, size[1] - 3
    for board, seen in zip(drawn(env), env.observations()["around"].long().tolist(), strict=True):
        oracle = Oracle(board)
        row, column = oracle.player
        cells = [(row + y, column + x) for y in range(-height, height + 1) for x in range(-width, width + 1)]
        assert seen == [cell in cells_of for cells_of in (oracle.floor, oracle.targets, oracle.boxes) for cell in cells]


def murmur(seed, env_id, episode):
    """Return 32 bits of a key: words are mixed in by the finaliser of MurmurHash3, after the golden ratio."""
    mixed = 0
    for word in (seed % 2**32, seed >> 32, (env_id * 0x85EBCA77 + episode * 0xC2B2AE3D) % 2**32):
        mixed = (mixed + 0x9E3779B9) % 2**32 ^ word
        mixed = (mixed ^ mixed >> 16) * 0x85EBCA6B % 2**32
        mixed = (mixed ^ mixed >> 13) * 0xC2B2AE35 % 2**32
        mixed ^= mixed >> 16
    return mixed


def test_boards_are_drawn_by_the_key_evenly_and_independently():
    for seed, env_id, episode in [(0, 0, 0), (5, 3, 9), (2**62 + 77, 2**32 - 1, 2**31 + 5)]:
        key = episode_key(seed, torch.tensor(env_id), torch.tensor(episode))
        for wide in (True, False):
            number = drawn_number(key, torch.tensor([2**15]), wide).item()
            assert number == murmur(seed, env_id, episode) * 2**15 >> 32
    env = vecenv.make("sokoban", 64, seed=7, compile=False, num_boxes=1, boards=2**16)
    assert env.state.board.tolist() == [murmur(7, row, 0) * 2**16 >> 32 for row in range(64)]
    rows, episodes = torch.meshgrid(torch.arange(512), torch.arange(512), indexing="ij")
    number = drawn_number(episode_key(3, rows, episodes), torch.tensor(16))
    # Rows and episodes that follow each other: chi-square of 256 pairs has the mean 255 and the deviation 22.6.
    for one, other in ((number[1:], number[:-1]), (number[:, 1:], number[:, :-1])):
        found = torch.bincount((16 * one + other).flatten(), minlength=256).double()
        assert ((found - found.mean()).square() / found.mean()).sum() < 255 + 5 * 22.6


@pytest.mark.parametrize("name, least", [("hindsight", 1.0), ("solver", 1.0), ("greedy", 0.5)])
def test_agents(name, least):
    env, agent = vecenv.make("sokoban", 64, compile=False, **SMALL), AGENTS[name]()
    while not bool(env.rows.done.all()):
        env.advance(agent.act(env))
    assert env.info()["success"].mean() >= least
    if name == "greedy":
        assert env.info()["success"].mean() < 1


def test_boards_depend_on_their_own_numbers_and_parts_share_none():
    few, many = (made_boards(SokobanConfig(num_boxes=2, boards=boards, part="test")) for boards in (40, 80))
    assert {*map(tuple, few.words[40:].tolist())} <= {*map(tuple, many.words[80:].tolist())}
    assert made_boards(SokobanConfig(num_boxes=2, boards=40, part="test", box_reward=0.0)) is few
    train = made_boards(SokobanConfig(num_boxes=1, boards=500, part="train"))
    other = made_boards(SokobanConfig(num_boxes=1, boards=500, part="validation"))
    assert not {*map(tuple, train.words.tolist())} & {*map(tuple, other.words.tolist())}


def test_every_walk_that_counts_leaves_all_boxes_away():
    for layout in ("rooms", "walls", "open"):
        config = SokobanConfig(num_boxes=3, dim_room=(8, 9), layout=layout)
        grid = Grid(8, 9)
        made = walked(grid, config, 3, episode_key(7, torch.arange(200), torch.tensor(0)))
        floor, targets, boxes, player = (
            tuple(part.unbind(-1)) for part in made.words[made.made].split(grid.words, dim=-1)
        )
        assert len(player[0]) > 10
        assert all(bool((count(cells) == 3).all()) for cells in (targets, boxes))
        pairs = zip(floor, targets, boxes, player, strict=True)
        assert all(bool(((t | b | p) & ~f == 0).all() & (b & (t | p) == 0).all()) for f, t, b, p in pairs)


@pytest.mark.parametrize("layout", ["rooms", "walls", "open"])
@pytest.mark.parametrize("size, words", [((6, 7), 1), ((10, 10), 2)])
def test_walks_in_cpp_are_those_of_tensors(layout, size, words):
    config = SokobanConfig(num_boxes=2, dim_room=size, layout=layout, max_steps=40, part="train")
    native, grid = _library(), Grid(*size, words)
    assert native is not None
    key = episode_key(2**40 + 5, torch.arange(300), torch.arange(300) % 7)
    tensors, cpp = walked(grid, config, 2, key), native(grid, config, 2, key)
    assert torch.equal(tensors.made, cpp.made) and 20 < cpp.made.sum() < 280
    assert all(torch.equal(one[cpp.made], other[cpp.made]) for one, other in zip(tensors, cpp, strict=True))


def test_parameters_by_row():
    boxes, pulls = torch.tensor([1, 2, 3]).repeat(20), torch.tensor([3, 1000]).repeat_interleave(30)
    params = {"num_boxes": boxes, "max_pulls": pulls}
    env = vecenv.make("sokoban", 60, compile=False, boards=64, params=params)
    assert torch.equal(count(env.state.boxes.unbind(-1)), boxes)
    proofs = [[move for move in moves if move] for moves in env.scenario.boards.moves[env.state.board].tolist()]
    pushed = [pushes_of(*pair) for pair in zip(boards_of(env.scenario, env.state), proofs, strict=True)]
    assert max(pushed[:30]) <= 3 < max(pushed[30:])
    with pytest.raises(ValueError, match=r"num_boxes must be in \[1, 8\], got 9"):
        vecenv.make("sokoban", 2, compile=False, boards=64, params={"num_boxes": torch.tensor([1, 9])})
    with pytest.raises(ValueError, match="num_boxes must be at most the setting, 3, in every row"):
        vecenv.make("sokoban", 2, compile=False, boards=64, params={"num_boxes": torch.tensor([1, 4])})


def test_deadlock_ends_an_episode_by_option(tmp_path):
    file = tmp_path / "levels.txt"
    file.write_text("######\n#    #\n#@$ .#\n######\n")
    env = vecenv.make("sokoban", 1, compile=False, levels=file, end_on_deadlock=True)
    # Around the box, and into the corner.
    for move in (0, 3, 3, 1, 2):
        assert not bool(env.rows.done)
        reward = env.advance(torch.tensor([[move]]))
    assert bool(env.rows.terminated) and reward.item() == pytest.approx(-0.1 * (1 + 95))
    assert env.info()["deadlock"] == 1 and env.info()["success"] == 0


def test_levels(tmp_path):
    file = tmp_path / "levels.txt"
    # As some editors write it.
    file.write_text(LEVELS.split("\n", 1)[1], encoding="utf-8-sig")
    env = vecenv.make("sokoban", 32, compile=False, levels=file)
    assert env.scenario.boards.names == ("level 1", "Two boxes")
    assert drawn(env)[env.state.board.tolist().index(0)][:3] == ["#########", "#@$.#####", "#########"]
    agent = AGENTS["hindsight"]()
    env.advance(agent.act(env))
    lines = env.scenario.task.text(env.scenario).render(env.observations(), env.state)
    assert {line.splitlines()[-1] for line in lines} == {"Boxes on targets: 1 of 1", "Boxes on targets: 1 of 2"}
    while not bool(env.rows.done.all()):
        env.advance(agent.act(env))
    assert bool((env.info()["success"] == 1).all())


@pytest.mark.parametrize(
    "text, told",
    [
        ("#####\n# $.#\n#####", "level 1, row 1: there is no player"),
        ("; my_level-1\n\n#####\n#@$.#\n#@  #\n#####", "my_level-1, row 5: a second player"),
        ("#######\n#@$$. #\n#######", "level 1, row 1: 2 boxes for 1 targets"),
        ("#" * 26 + "\n#@$." + " " * 21 + "#\n" + "#" * 26 + "\n" + "#" * 26, "row 1: 4 x 26 cells, at most 100"),
        ("#####\n#@.$#\n#####", "level 1, row 1: it cannot be solved"),
        ("#####\n#@$. \n#####", "level 1, row 2: the board is open at column 5"),
        ("#####\n#@* #\n#####", "level 1, row 1: it is solved already"),
        ("#####\n#@$x#\n#####", "level 1, row 2: 'x' is none of"),
        ("#####\n#@ ##\n##$.#\n#####", "it cannot be solved"),
        ("no level", "there is no level"),
    ],
)
def test_wrong_levels_are_named(tmp_path, text, told):
    file = tmp_path / "levels.txt"
    file.write_text(text)
    with pytest.raises(ValueError, match=told.replace("(", r"\(")):
        vecenv.make("sokoban", 1, compile=False, levels=file)


def test_boards_that_cannot_be(monkeypatch):
    monkeypatch.setattr("vecenv.tasks.games.sokoban.boards.ATTEMPTS", 2000)
    with pytest.raises(
        ValueError, match=r"no boards of \d boxes were found in a room of 5 x 5 \(rooms\) by 2,000 walks"
    ):
        made_boards(SokobanConfig(dim_room=(5, 5), num_boxes=8, boards=1))


def exhaustive(board):
    """Return the fewest pushes of a solution by breadth over all positions, None without one."""
    start = board.boxes, min(board.reached(board.boxes, board.player))
    seen, layer, pushes = {start}, [start], 0
    while layer:
        following = []
        for boxes, player in layer:
            if boxes <= board.targets:
                return pushes
            reach = board.reached(boxes, player)
            for box in boxes:
                for step in board.steps:
                    if box - step in reach and box + step in board.floor and box + step not in boxes:
                        after = boxes - {box} | {box + step}
                        state = after, min(board.reached(after, box))
                        if state not in seen:
                            seen.add(state)
                            following.append(state)
        layer, pushes = following, pushes + 1
    return None


def test_the_solver_finds_the_fewest_pushes():
    env = vecenv.make("sokoban", 24, compile=False, **SMALL, layout="walls", wall_density=0.3)
    lengths = set()
    for board in boards_of(env.scenario, env.state):
        moves = solution(board)
        fewest = exhaustive(board)
        assert pushes_of(board, moves) == fewest
        lengths.add(fewest)
        oracle = Oracle(drawn_board(board))
        for move in moves:
            oracle.step(move - 1)
            assert oracle.effective
        assert oracle.solved
    assert len(lengths) > 2


@pytest.mark.nightly
def test_boards_of_many_boxes_are_solved_by_their_proofs_and_by_the_solver():
    boxes = torch.arange(100_000) % 4 + 1
    rules = {"num_boxes": 4, "dim_room": (8, 8)}
    env = vecenv.make("sokoban", len(boxes), compile=False, params={"num_boxes": boxes}, **rules)
    agent, few = AGENTS["hindsight"](), env.state[:1000]
    boards, proofs = boards_of(env.scenario, few), env.scenario.boards.moves[few.board].tolist()
    while not bool(env.rows.done.all()):
        env.advance(agent.act(env))
    assert bool((env.info()["success"] == 1).all())
    for board, proof in zip(boards, proofs, strict=True):
        moves, oracle = solution(board), Oracle(drawn_board(board))
        assert pushes_of(board, moves) <= pushes_of(board, [move for move in proof if move])
        for move in moves:
            oracle.step(move - 1)
        assert oracle.solved


def drawn_board(board):
    width, last = board.width, max(board.floor) + board.width
    marks = [
        "#" if cell not in board.floor
        else "*$"[cell not in board.targets] if cell in board.boxes
        else "+@"[cell not in board.targets] if cell == board.player
        else ". "[cell not in board.targets]
        for cell in range(last + width - last % width)
    ]  # fmt: skip
    return ["".join(marks[first : first + width]) for first in range(0, len(marks), width)]
