"""Commands that train a language model as several processes: one is killed, and another number goes on alike."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from vecenv.learn.checkpoints import load_checkpoint, state_digest
from vecenv.tasks.commands.cli import main

KILL = str(Path(__file__).parent / "kill_rank.py")
SFT = ["sft", "--data", "data.jsonl", "--device", "cpu", "--epochs", "2", "--checkpoint-every", "4"]
SFT += ["--tiny.hidden", "16", "--tiny.layers", "1", "--tiny.heads", "2"]
TRAIN = [
    "train", "--task", "single_stock_costs", "--market", "planted", "--num-paths", "4", "--num-days", "330",
    "--env.context", "signal", "--env.days", "2", "--algorithm", "grpo", "--model", "sft", "--no-compile",
    "--learner.history-days", "0", "--learner.answer-tokens", "6", "--num-groups", "8", "--group-size", "2",
    "--learner.minibatches", "2", "--learner.total-frames", "128", "--learner.checkpoint-every", "1",
    "--episodes", "2", "--agents", "hold", "--device", "cpu",
]  # fmt: skip


def killed(words: list[str], at: int) -> str:
    """Run two processes of which one is killed, and return the last line of what is told."""
    command = [sys.executable, "-m", "vecenv", *words, "--processes", "2", "--import", KILL]
    known = os.environ | {"KILLED_AT": str(at)}
    done = subprocess.run(command, env=known, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 2
    return (done.stdout + done.stderr).strip().splitlines()[-1]


@pytest.mark.nightly
def test_processes_that_are_killed_go_on_as_one_to_the_same_bits(tmp_path, one_thread, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shown = [("user", f"number {number % 7}", ("BUY 0.5", "SELL", "HOLD")[number % 3]) for number in range(60)]
    lines = [
        {"messages": [{"role": role, "content": text}, {"role": "assistant", "content": said}]}
        for role, text, said in shown
    ]
    Path("data.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert "rank 1 " in (told := killed([*SFT, "--folder", "killed"], 6)) and "SIGKILL" in told
    assert Path("killed/checkpoint.pt").is_file()
    assert main([*SFT, "--folder", "killed", "--seed", "1", "--processes", "1"]) == 2
    for folder in ("killed", "sft"):
        assert main([*SFT, "--folder", folder, "--processes", "1"]) == 0
    files = [{path.name: path.read_bytes() for path in Path(name).iterdir()} for name in ("killed", "sft")]
    assert files[0] == files[1] and "checkpoint.pt" not in files[0]

    assert "SIGKILL" in killed([*TRAIN, "--folder", "run"], 2)
    assert load_checkpoint(Path("run/checkpoint.pt"), torch.device("cpu"))["update"] == 2
    assert main(["train", "--resume", "run", "--processes", "1"]) == 0
    assert main([*TRAIN, "--folder", "whole", "--processes", "1"]) == 0
    states = [load_checkpoint(Path(name, "checkpoint.pt"), torch.device("cpu")) for name in ("run", "whole")]
    assert state_digest(states[0]) == state_digest(states[1])
