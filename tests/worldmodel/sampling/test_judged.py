"""Models to evaluate, by the name of shipped weights or by file, and the dates on which their test may begin."""

from __future__ import annotations

import pytest

from vecenv.worldmodel.network.named_weights import JUDGED
from vecenv.worldmodel.sampling.judged import judged_model


@pytest.mark.parametrize("model", ["judged", JUDGED])
def test_weights_have_a_name_and_a_file_and_know_their_split(model):
    found, train_end, validation_end = judged_model(model, "india", 1.0, None, None)
    assert (found.name, found.market, train_end, validation_end) == ("neural", "india", "2021-12-31", "2022-12-31")


def test_a_test_does_not_begin_within_the_days_of_the_weights():
    with pytest.raises(ValueError, match=r"shipped\.safetensors was chosen on days up to 2024-12-31"):
        judged_model("shipped", "india", 1.0, "2021-12-31", "2022-12-31")


def test_a_name_that_there_is_not_is_a_file_that_there_is_not():
    with pytest.raises(FileNotFoundError, match="juged: no checkpoint"):
        judged_model("juged", "india", 1.0, None, None)
