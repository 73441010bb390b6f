"""Answers of moves, boards as texts and pictures."""

import pytest
import torch

from vecenv.tasks.games.grid import NO_MOVE, MoveLanguage, is_valid, moves_spec, picture, written

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
        ("go left", "'GO' is no move; there are Left, Down, Right, Up, or 1 to 4"),
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
    assert written(board, "ab ") == [["ab", "b"], ["b"]]
    drawn = picture(board, torch.tensor([[1, 2, 3], [4, 5, 6], [7, 8, 9]], dtype=torch.uint8), pixels=2)
    assert drawn.shape == (2, 3, 4, 4) and drawn[0, :, 1, 2].tolist() == [4, 5, 6] == drawn[1, :, 0, 1].tolist()
