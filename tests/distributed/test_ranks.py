"""Ranks in processes of their own, over gloo: what they learn, and what is told, and left, when one fails."""

import contextlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.distributed import training
from vecenv.distributed import ranks
from vecenv.distributed.settings import ProcessSettings, is_rank
from vecenv.learn.checkpoints import load_checkpoint, state_digest
from vecenv.learn.shards import ALONE
from vecenv.tasks.commands import train
from vecenv.tasks.commands.cli import main
from vecenv.tasks.experiment import train_settings

HERE = Path(__file__).parent

RUN = [
    "train", "--preset", "quick", "--market", "synthetic", "--no-compile", "--num-envs", "8", "--episodes", "2",
    "--learner.total-frames", "640", "--learner.num-steps", "16", "--learner.minibatches", "2",
    "--learner.checkpoint-every", "1", "--validation-fraction", "0", "--agents", "hold",
]  # fmt: skip
"""A run of five updates."""


@pytest.fixture(autouse=True)
def nothing_is_left():
    before = shared_memory()
    yield
    deadline = time.monotonic() + 60
    # Another worker of pytest's may share memory for a moment too.
    while (left := [*children(), *(shared_memory() - before)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left, left


def children() -> list[str]:
    """Return the command lines of processes that the tests have started."""
    told = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    return [line for line in told.splitlines() if f"{HERE}/" in line and "pytest" not in line]


def shared_memory() -> set[str]:
    folder = Path("/dev/shm")
    names = [path.name for path in folder.iterdir()] if folder.exists() else []
    return {name for name in names if name.startswith(("torch_", "gloo"))}


def equal_on_ranks(folder: Path, compiled: bool) -> None:
    known = os.environ | {"COMPILED": str(int(compiled)), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parents[1])}
    subprocess.run([sys.executable, str(HERE / "training.py"), str(folder)], env=known, check=True, timeout=900)
    two, four = (json.loads((folder / f"{count}.json").read_text()) for count in (2, 4))
    alone = {case: training.trained(case, compiled, None, None) for case in training.CASES}
    goes_on = {f"{case} goes on": told for case, told in alone.items()}
    differs = {"message": "rank 3 has another settings.seed than rank 0: 1, not 0"}
    assert two == alone
    assert four == alone | goes_on | {"differs": differs}
    for case in training.CASES:
        assert training.trained(case, compiled, folder / f"{case}.pt", None) == alone[case]


def test_two_and_four_processes_learn_bit_for_bit_what_one_does(tmp_path, one_thread):
    equal_on_ranks(tmp_path, compiled=False)


@pytest.mark.nightly
def test_processes_learn_the_same_compiled(tmp_path, one_thread):
    equal_on_ranks(tmp_path, compiled=True)


def failing(fault: str, *words: str) -> tuple[int, list[str]]:
    """Run two ranks of which one has a fault; return the exit code and what is told."""
    command = [sys.executable, "-m", "vecenv", *RUN, "--processes", "2", "--import", str(HERE / "faults.py"), *words]
    done = subprocess.run(
        command, env=os.environ | {"FAULT": fault}, capture_output=True, text=True, timeout=300, check=False
    )
    return done.returncode, (done.stdout + done.stderr).strip().splitlines()


def test_a_run_whose_rank_is_killed_goes_on_with_any_number_to_the_same_bits(tmp_path, one_thread, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, told = failing("kill 1 3", "--folder", "killed")
    assert code == 2
    assert re.fullmatch(r"vecenv train: error: rank 1 \(process \d+\) was killed by SIGKILL: .*", told[-1])
    assert load_checkpoint(Path("killed/checkpoint.pt"), torch.device("cpu"))["update"] == 3
    assert main(["train", "--resume", "killed", "--processes", "1", "--json", "resumed.json"]) == 0
    assert main([*RUN, "--folder", "whole", "--processes", "1", "--json", "whole.json"]) == 0
    assert learned_in(Path("killed")) == learned_in(Path("whole"))
    resumed, whole = (json.loads(Path(f"{run}.json").read_text()) for run in ("resumed", "whole"))
    assert resumed["evaluation"] == whole["evaluation"]
    assert main(["train", "--resume", "killed", "--processes", "3"]) == 2


def test_a_rank_that_hangs_ends_all_and_is_named_with_its_place(tmp_path):
    code, told = failing("hang 1 2", "--folder", str(tmp_path / "run"), "--stall-seconds", "10")
    assert code == 2
    assert re.fullmatch(
        r"vecenv train: error: rank 1 \(process \d+\) made no step within --stall-seconds; .*", told[-1]
    )
    assert any("faults.py" in line and "in faulty" in line for line in told)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("raise 1 2", "failed: RuntimeError: a fault of this rank"),
        ("loss 1 2", "failed: update 3: losses are not finite: .*"),
        ("stop 1 2", "failed: RankLostError: rank 0 waited for rank 1 in vain: .*"),
    ],
)
def test_a_rank_that_fails_ends_all_and_is_named(fault, reason, tmp_path):
    code, told = failing(fault, "--folder", str(tmp_path / "run"), "--stall-seconds", "10")
    assert code == 2
    assert re.fullmatch(rf"vecenv train: error: rank \d \(process \d+\) {reason}", told[-1])


@contextlib.contextmanager
def by_torchrun(agents: int, folder: Path, *words: str, **environment: str) -> Iterator[list[subprocess.Popen]]:
    """Start a run of two ranks by agents that start them again after a failure; all end well with the context."""
    start = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(2 // agents), "--max-restarts", "3"]
    start += ["--nnodes", str(agents), "--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{training.free_port()}"]
    command = [*start, "-m", "vecenv", *RUN, "--folder", str(folder), *words]
    started = [subprocess.Popen(command, env=os.environ | environment) for _ in range(agents)]
    try:
        yield started
        assert [agent.wait(600) for agent in started] == [0] * agents
    finally:
        for agent in started:
            agent.terminate()
            agent.wait()


def learned_in(folder: Path) -> str:
    return state_digest(load_checkpoint(folder / "checkpoint.pt", torch.device("cpu")))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> str:
    """Return the hash of what a run learns that nothing disturbs."""
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    assert main([*RUN, "--folder", str(folder), "--processes", "1"]) == 0
    return learned_in(folder)


@pytest.mark.nightly
@pytest.mark.parametrize("agents", [1, 2])
def test_agents_of_torchrun_start_ranks_again_that_go_on_to_the_same_bits(agents, tmp_path, undisturbed):
    with by_torchrun(agents, tmp_path / "run", "--import", str(HERE / "faults.py"), FAULT="kill 1 3"):
        pass
    assert learned_in(tmp_path / "run") == undisturbed


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(5))
def test_a_rank_that_is_killed_at_any_moment_changes_no_bit(seed, tmp_path, undisturbed):
    chance, folder = random.Random(seed), tmp_path / "run"
    update, log = chance.randrange(5), folder / "metrics.csv"
    with by_torchrun(1 + seed % 2, folder) as agents:
        deadline = time.monotonic() + 300
        while len(ranks := [rank for agent in agents for rank in children_of(agent.pid)]) < 2 or (
            update and not (log.is_file() and len(log.read_text().splitlines()) > update)
        ):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        time.sleep(chance.uniform(0, 3))
        with contextlib.suppress(ProcessLookupError):
            os.kill(chance.choice(ranks), signal.SIGKILL)
    assert learned_in(folder) == undisturbed


def children_of(process: int) -> list[int]:
    told = subprocess.run(["pgrep", "-P", str(process)], capture_output=True, text=True, check=False).stdout
    return [int(line) for line in told.split()]


def test_ranks_that_are_started_again_go_on_with_what_their_own_agent_began(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "one")
    settings, name = train_settings(task="single_stock", folder=tmp_path), tmp_path / train.STARTED_BY
    assert train._restarted(settings, ALONE) is settings
    train._note(name)
    assert train._restarted(settings, ALONE) is settings, "it has saved nothing"
    (tmp_path / "checkpoint.pt").touch()
    assert train._restarted(settings, ALONE).resume == tmp_path
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "another")
    assert train._restarted(settings, ALONE) is settings
    with pytest.raises(OSError, match=r"^/dev/full: the disk is full$"):
        train._note(Path("/dev/full"))


def test_ranks_are_known_by_all_that_torchrun_sets(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    assert not is_rank() and ProcessSettings(processes=3).num_ranks() == 3 and ProcessSettings().num_ranks() == 0
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(ValueError, match=r"^RANK is set, but not WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT: "):
        is_rank()
    for name in ("WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR"):
        monkeypatch.setenv(name, "1")
    for port, told in (
        ("none", "a number, got 'none'"),
        ("95036", "in 1 … 65535, got 95036"),
        ("0", "in 1 … .* got 0"),
    ):
        monkeypatch.setenv("MASTER_PORT", port)
        with pytest.raises(ValueError, match=f"^MASTER_PORT must be {told}$"):
            is_rank()
    monkeypatch.setenv("MASTER_PORT", "29500")
    assert is_rank()
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert ProcessSettings().num_ranks() == ProcessSettings(processes=2).num_ranks() == 0
    with pytest.raises(ValueError, match=r"^--processes 3, but 2 ranks were started: leave it out$"):
        ProcessSettings(processes=3).num_ranks()


def test_ranks_that_cannot_meet_say_where_and_why(monkeypatch, capfd):
    monkeypatch.setattr(ranks, "LONGEST_MEETING", 0.2)
    monkeypatch.setattr(ranks, "_end_with_parent", lambda: None)
    threads = torch.get_num_threads()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        known = {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        for rank, where, why in (
            (0, port, ".*address already in use"),
            (1, port, "nobody listens there within 0 s: Connection refused$"),
        ):
            for name, value in (known | {"RANK": str(rank), "MASTER_PORT": str(where)}).items():
                monkeypatch.setenv(name, value)
            told = rf"^rank {rank} cannot meet the others at 127\.0\.0\.1:{where}: {why}"
            with pytest.raises(ValueError, match=told), ranks.joined(torch.device("cpu"), 1.0):
                pass
    torch.set_num_threads(threads)
    assert capfd.readouterr().err == ""
