"""Models that are split over ranks learn what whole ones do, but for rounding."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.language import split_training
from tests.language.tiny import talking_model
from vecenv.language.split_model import split_over
from vecenv.learn.shards import ALONE

HERE = Path(__file__).parent


@pytest.mark.assembly
def test_two_ranks_with_parts_of_the_model_and_one_that_plays_learn_what_one_does(tmp_path, one_thread):
    before = talking_model()[0].state_dict()
    torch.save(before, tmp_path / "taught.pt")
    whole = {case: split_training.trained(case, before)["model"] for case in split_training.CASES}
    known = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parents[1])}
    # Three processes from their start: a copy of one that has computed takes over its libraries without their threads.
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3", "-m"]
    subprocess.run([*torchrun, split_training.__name__, str(tmp_path)], env=known, check=True, timeout=900)
    for case, expected in whole.items():
        for found in torch.load(tmp_path / f"{case}.pt", weights_only=True):
            assert found.keys() == expected.keys()
            for name, tensor in found.items():
                torch.testing.assert_close(tensor, expected[name], atol=1e-6, rtol=0)
    assert any(not torch.equal(tensor, before[name]) for name, tensor in whole["full"].items()), "nothing was learned"


def test_what_cannot_be_split_is_refused():
    model, _ = talking_model()
    with pytest.raises(ValueError, match=r"^a model is split over several processes"):
        split_over(model, ALONE)
