"""Answers of moves, boards as texts and pictures."""

import numpy as np
import pytest
import torch

import vecenv
from vecenv.learn.evaluation import Random, evaluate
from vecenv.tasks.games.figures import grid_figures
from vecenv.tasks.games.grid import NO_MOVE, MoveLanguage, is_valid, moves_spec, picture, written
from vecenv.text.door import TextDoor

WORDS = ("Left", "Down", "Right", "Up")


@pytest.mark.parametrize(
    ("text", "moves"),
    [
        ("left", [0]),
        ("<think>2?</think><answer>Down || 3</answer>", [1, 2]),
        ("1, 2,4", [0, 1, 3]),
        ("Up -> up\nRight", [3, 3, 2]),
        ("**Left**", [0]),
    ],
)
def test_moves_are_read_by_word_or_number(text, moves):
    language = MoveLanguage(WORDS, 3)
    action, valid = language.tensor([language.parse(text)])
    assert valid.item() and action.tolist() == [moves + [NO_MOVE] * (3 - len(moves))]
    assert moves_spec(3).is_in(action[0]) and language.parse(language.written(action[0].tolist())) == moves


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("Left Left Left Left", "there are 4 moves in it, and at most 3"),
        ("go left", "'go' is no move; there are Left, Down, Right, Up, or 1 to 4"),
        ("0", "'0' is no move"),
        ("||", "there is no move in it"),
        ("", "there is no answer in it"),
    ],
)
def test_what_is_no_move_is_invalid_and_told(text, fault):
    language = MoveLanguage(WORDS, 3)
    assert fault in language.fault(text)
    action, valid = language.tensor([language.parse(text)])
    assert not valid.item() and not is_valid(action).item()


def test_boards_are_lines_and_pictures():
    board = torch.tensor([[[0, 1], [1, 2]], [[1, 2], [2, 2]]])
    assert written(board, "abc") == [["ab", "bc"], ["bc", "cc"]]
    drawn = picture(board, torch.tensor([[1, 2, 3], [4, 5, 6], [7, 8, 9]], dtype=torch.uint8), pixels=2)
    assert drawn.shape == (2, 3, 4, 4) and drawn[0, :, 1, 2].tolist() == [4, 5, 6] == drawn[1, :, 0, 1].tolist()


GAMES = [("sokoban", (6, 6), {"boards": 64}), ("frozen_lake", (4, 4), {}), ("race", (3, 9), {})]


@pytest.mark.parametrize(("task", "size", "options"), GAMES)
def test_render_modes_are_texts_and_pictures_of_the_same_boards(task, size, options):
    gymnasium = pytest.importorskip("gymnasium")
    name = f"vecenv.adapters.gymnasium:vecenv/{task}"
    single = gymnasium.make(name, render_mode="rgb_array", **options)
    rules = {"render_mode": "rgb_array", "autoreset_mode": "Disabled", "compile": False, **options}
    rows = gymnasium.make_vec(name, 2, **rules)
    assert single.metadata["render_modes"] == rows.unwrapped.metadata["render_modes"] == ["ansi", "rgb_array"]
    game = rows.unwrapped.env.scenario
    _ = single.reset(seed=1), rows.reset(seed=1)
    for move in (1, 3, 2):
        shown = single.render()
        assert shown.shape == (24 * size[0], 24 * size[1], 3) and shown.dtype == np.uint8
        assert np.array_equal(shown, rows.render()[0]) and len(rows.render()) == 2
        # The middle of each cell has the colour of its kind, which the text has the symbol of.
        lines = TextDoor(single.unwrapped.rows.env).render([0])[0].split("\n")[: size[0]]
        expected = [[game.colours[game.symbols.index(cell)] for cell in line] for line in lines]
        assert shown[12::24, 12::24].tolist() == [[list(colour) for colour in line] for line in expected]
        assert (shown[::24] == 235).all() and (shown[:, ::24] == 235).all()
        action = np.full(single.action_space.shape, move)
        rows.step(np.stack([action, action]))
        if single.step(action)[2]:
            break


def test_what_has_no_pictures_says_so():
    pytest.importorskip("gymnasium")
    from vecenv.adapters.gymnasium_vector import GymnasiumVectorEnv

    with pytest.raises(ValueError, match="render_mode 'rgb_array' is none of countdown; it has ansi"):
        GymnasiumVectorEnv("countdown", 1, render_mode="rgb_array", compile=False)


def test_observations_of_gem_are_pictures_by_rolls_setting():
    pytest.importorskip("gem")
    from vecenv.adapters.gem_env import make_gem_env

    seen, told = (make_gem_env("frozen_lake", render_mode=mode) for mode in ("rgb_array", "text"))
    for env in (seen, told):
        shown, info = env.reset(seed=3)
        assert "frozen lake" in info["env_instruction"] and np.array_equal(shown, env.render())
        after = env.step("Right Down")[0]
        assert np.array_equal(after, env.render())
    assert seen.render().shape == (96, 96, 3) and isinstance(told.render(), str)
    assert seen.spawn().render_mode == "rgb_array"
    with pytest.raises(ValueError, match="render_mode 'rgb_array' is none of countdown; it has text"):
        make_gem_env("countdown", render_mode="rgb_array")


@pytest.mark.parametrize("task", ["frozen_lake", "race"])
def test_figures_tell_an_episode_and_who_succeeds_by_when(task):
    env = vecenv.make(task, 16, compile=False, max_steps=20)
    make = env.scenario.task.domain.best
    figures = grid_figures(env, {"best": make(env), "random": Random()}, seed=2)
    best, chance = (line.get_ydata() for line in figures["success"].axes[0].lines)
    assert len(best) <= 21 and (np.diff(best) >= 0).all() and best[-1] > chance[-1] and best[0] == 0
    assert best[-1] == 100 * evaluate(env, {"best": make(env)}, seed=2).records["best"].grades["grade"].mean()
    titles = [axis.get_title() for axis in figures["episode"].axes if axis.get_title()]
    assert titles[0] == "0" and titles == sorted(titles, key=int)
