"""A command that is killed, wherever it is, comes to the same in the end as one that was not."""

import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest
import torch
from safetensors.torch import load_file
from torch.utils._pytree import tree_leaves

from tests.tasks.commands.small_runs import bars
from tests.worldmodel.neural_market import tiny_network, write_market
from vecenv.market.synthetic import synthetic_bars
from vecenv.worldmodel.network.checkpoint import load_network, save_network

COMMAND = """
import sys
from vecenv.tasks.commands import cli
from vecenv.tasks.experiment import experiment
from vecenv.worldmodel.commands import fit
from vecenv.worldmodel.network.market_network import DRIFT_SIZES
from vecenv.worldmodel.sampling import stationary
from vecenv.worldmodel.training import coupling, drift

def told(kind, name, what):
    own = getattr(kind, name)
    setattr(kind, name, lambda bar, given: (print("now", what(given), flush=True), own(bar, given))[1])

told(experiment.TrainingBar, "show", lambda metrics: metrics["update"])
told(fit.PartsBar, "part", str)
stationary.BURN_IN, coupling.PATHS = 5, 2
drift.EFFORTS = {size: drift.Effort(starts=4, pairs=16) for size in DRIFT_SIZES}
sys.exit(cli.main(sys.argv[1:]))
"""
TRAIN = "train --market market.parquet --no-compile --num-envs 16 --episodes 3 --validation-episodes 4 --evaluations 4"
TRAIN += " --env.episode-length 12 --env.features rsi_30 --env.action tilt"
SIZES = {"total-frames": 128 * 9, "num-steps": 8, "hidden": 8, "checkpoint-every": 2, "minibatches": 2}
MORE = {"ppo": {}, "sac": {"minibatch-size": 32, "buffer-size": 512}}
FIT = "worldmodel fit --market mine.parquet --init initial.safetensors --learning-rate 0.003"
FIT += " --steps 20 --evaluate-every 10"
PARTS = ("reading", "zero-shot", "training", "mine: coupling", "mine: drift", "mine: starts")


def started(folder: Path, words: str) -> subprocess.Popen:
    place = {"cwd": folder, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen([sys.executable, "-c", COMMAND, *words.split()], **place)


def ended(folder: Path, words: str, code: int = 0) -> None:
    process = started(folder, words)
    said, _ = process.communicate()
    assert process.returncode == code, said


def killed(folder: Path, words: str, part: object, sent: int, delay: float) -> None:
    """Kill a command some time after it has told that a part begins."""
    process = started(folder, words)
    assert any(line == f"now {part}\n" for line in process.stdout), part
    time.sleep(delay)
    process.send_signal(sent)
    process.communicate()
    assert process.returncode == -sent


def compared(one: object, other: object) -> None:
    for first, second in zip(tree_leaves(one), tree_leaves(other), strict=True):
        assert torch.equal(first, second) if isinstance(first, torch.Tensor) else repr(first) == repr(second)


@pytest.mark.nightly
@pytest.mark.parametrize("name", [*MORE, "fit"])
def test_what_was_killed_comes_to_what_an_undisturbed_run_comes_to(name, tmp_path):
    draw, signals = Random(name), (signal.SIGKILL, signal.SIGTERM)
    if name == "fit":
        write_market(tmp_path / "mine.parquet", synthetic_bars(1, 400, 5, seed=3))
        save_network(tmp_path / "initial.safetensors", tiny_network(), {"sources": {}}, {})
        ended(tmp_path, f"{FIT} --out whole.safetensors")
        out, best = tmp_path / "m.safetensors", tmp_path / "m.best.safetensors"
        again = f"{FIT} --out {out}"
        for number, part in enumerate(PARTS):
            killed(tmp_path, again, part, signals[number % 2], draw.uniform(0, 0.05))
            assert not out.exists() and best.exists() >= part.startswith("mine")
            if best.exists():
                assert load_network(best).record["step"] > 0
                ended(tmp_path, again, 2)
                best.unlink()
        ended(tmp_path, again)
        compared(load_file(tmp_path / "whole.safetensors"), load_file(out))
        return
    bars(3, 160).to_parquet(tmp_path / "market.parquet")
    words = f"{TRAIN} --algorithm {name}"
    words += "".join(f" --learner.{option} {value}" for option, value in (SIZES | MORE[name]).items())
    ended(tmp_path, f"{words} --folder whole")
    for sent in signals:
        killed(tmp_path, f"{words} --folder {sent.name}", draw.randint(3, 7), sent, draw.uniform(0, 0.02))
        ended(tmp_path, f"train --resume {sent.name}")
        compared(*(torch.load(tmp_path / run / "checkpoint.pt", weights_only=True) for run in ("whole", sent.name)))
