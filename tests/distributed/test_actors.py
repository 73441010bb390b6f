"""Actors on Ray give what one process gives, also where they, the learner or Ray die, and leave nothing behind."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from tests.distributed.acting import PATHS, ROWS, Ledger, ZeroPolicy, digest, make_env, make_learner
from tests.distributed.leftovers import MARK, gone, kept, left, marked
from tests.small_env import assert_same_bits
from vecenv.distributed.actors import LOST, ActorCollector, play_by_actors
from vecenv.distributed.ray_session import as_before
from vecenv.distributed.settings import ActorSettings
from vecenv.distributed.shares import shares_of
from vecenv.distributed.worker_rows import rows_of_workers
from vecenv.learn.checkpoints import load_checkpoint
from vecenv.learn.runs import read_metrics
from vecenv.learn.settings.run import CHECKPOINT, METRICS

ray = pytest.importorskip("ray")


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def shared_ray():
    """One Ray for the tests of this module, of which nothing is left at its end."""
    before, mark = kept(), uuid.uuid4().hex
    os.environ[MARK] = mark
    folder = tempfile.mkdtemp(prefix="vecenv-ray-")
    options = {"num_cpus": 2, "include_dashboard": False, "object_store_memory": 200_000_000, "log_to_driver": False}
    ray.init(address="local", logging_level="ERROR", _temp_dir=folder, **options)
    yield
    ray.shutdown()
    shutil.rmtree(folder)
    del os.environ[MARK]
    assert gone(mark, before), f"Ray left {marked(mark)} and {left(before)}"


def killed(collector: ActorCollector, actor: int) -> None:
    pid = ray.get(collector.processes[actor].__ray_call__.remote(lambda self: os.getpid()))
    os.kill(pid, signal.SIGKILL)


def test_a_dead_actor_and_another_market_change_nothing(shared_ray):
    """Two actors, of which one dies in the middle, train as one process does; no episode is lost or counted twice."""
    one, many, ledger = make_learner(), make_learner(), Ledger()
    play_by_actors(many, ActorSettings(actors=2))
    ledger.follow(many)
    shared = one.env.scenario.shared
    other = {name: tensor.flip(0) if len(tensor) == PATHS else tensor for name, tensor in shared.items()}
    for update in range(4):
        if update == 2:
            killed(many.collector, 1)
            for learner in (one, many):
                learner.env.write_shared(other)
        one.update()
        with pytest.warns(RuntimeWarning, match="actor 1 is replaced") if update == 2 else nullcontext():
            metrics = many.update()
        assert_same_bits(one.collector.buffers(), many.collector.buffers(), f"in update {update}")
        assert digest(one.state_dict()) == digest(many.state_dict())
        assert (metrics["policy_lag"], metrics["actors_replaced"]) == (0, update >= 2)
    ledger.check()
    many.collector.close()
    assert ray.is_initialized(), "a Ray that others use goes on"


def test_torchrl_workers_have_rows_of_their_own(shared_ray):
    """An episode is the same in a worker of TorchRL, in an actor and in one process; workers have none in common."""
    from torchrl.collectors.distributed import RayCollector

    steps, each = 24, 4
    options = {"trust_policy": True, "remote_configs": {"num_cpus": 1, "memory": 2**28}, "ray_init_config": None}
    whole = make_env(2 * each)
    policy = ZeroPolicy(whole.action_spec.shape[1:])
    factories = rows_of_workers("stock_trading", each, 2, **ROWS)
    frames = 2 * each * steps
    collector = RayCollector(factories, policy, frames_per_batch=frames, total_frames=frames, sync=True, **options)
    (batch,) = collector
    collector.shutdown(shutdown_ray=False)
    own = whole.rollout(steps, policy, break_when_any_done=False)
    assert int(own["next", "done"].sum()) >= 2 * 2 * each, "several episodes of every row"
    for name in ("observation", ("next", "reward"), ("next", "done")):
        assert_same_bits([batch[name].flatten(0, 1)], [own[name]], f"in {name}")
    firsts = own["observation"][:, 0]
    assert len(firsts.unique(dim=0)) > each, "the workers would not be copies of each other"

    played = ActorCollector(make_env(2 * each), policy, steps, ActorSettings(actors=1), shards=2)
    observed = played.rollout()["observation"].clone()
    played.close()
    assert_same_bits([observed], [own["observation"]], "in an actor")


@pytest.mark.parametrize(
    ("numbers", "told"),
    [
        ((1000, 16, 2), "1000 sub-environments cannot be split into 16 equal shards: take 10 or 20 shards"),
        ((48, 8, 2, 4), "whole worlds of 4 rows: .* 32 and 64"),
        ((64, 8, 9), "9 actors cannot share 8 shards .* at most 8"),
    ],
)
def test_rows_that_do_not_split_are_refused_with_the_nearest_numbers(numbers, told):
    with pytest.raises(ValueError, match=told):
        shares_of(*numbers)


def test_a_signal_that_ends_the_start_of_ray_has_its_exit_code():
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with pytest.raises(SystemExit, match=r"^143$"), as_before(signal.SIGTERM):
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.signal(signal.SIGTERM, before) is signal.SIG_IGN


LEARNER = """
import signal, sys, torch
torch.set_num_threads(1)
from tests.distributed.leftovers import MARK, gone, kept, left, marked
from tests.distributed.acting import make_learner
from vecenv.distributed.actors import ActorSettings, play_by_actors
from vecenv.distributed.ray_session import ActorError
from vecenv.learn.runs import run

def waiting(metrics):
    print(metrics["update"], flush=True)
    input()

learner = make_learner()
play_by_actors(learner, ActorSettings(actors=1, max_lag=1))
assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, "Ray has its own"
try:
    run(learner, sys.argv[1], resume=sys.argv[2] == "resume", on_update=waiting)
except ActorError as error:
    learner.collector.close()
    sys.exit(f"stopped: {error}")
"""


def test_a_run_goes_on_from_the_death_of_the_learner_and_of_ray(tmp_path):
    """With a lag of one update: to the bits of a run that nothing disturbed; and nothing is left."""
    before, mark = kept(), uuid.uuid4().hex
    environment = os.environ | {MARK: mark, "PYTHONPATH": os.getcwd()}
    environment.pop("RAY_ADDRESS", None)

    def started(how: str, number: int) -> subprocess.Popen[str]:
        """Start a learner and let it make the updates up to a number."""
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        command = [sys.executable, "-c", LEARNER, str(tmp_path), how]
        learner = subprocess.Popen(command, env=environment, text=True, **pipes)
        while float(learner.stdout.readline()) < number:
            print("", file=learner.stdin, flush=True)
        return learner

    learner = started("anew", 2)
    assert len(marked(mark)) > 3, "Ray's processes are not marked"
    learner.kill()
    learner.communicate()
    assert gone(mark, before), f"the learner's death left {marked(mark)} and {left(before)}"

    learner = started("resume", 4)
    (raylet,) = [pid for pid in marked(mark) if Path(f"/proc/{pid}/comm").read_text().strip() == "raylet"]
    os.kill(raylet, signal.SIGKILL)
    # Until its sockets are closed, Ray ends the learner at its next call, without a word.
    dead, threads = Path(f"/proc/{raylet}/stat"), Path(f"/proc/{raylet}/task")
    while dead.read_text().rpartition(")")[2].split()[0] != "Z" or len(list(threads.iterdir())) > 1:
        time.sleep(0.01)
    _, told = learner.communicate("\n")
    assert learner.returncode == 1
    assert told.splitlines()[-1] == "stopped: " + LOST
    assert gone(mark, before), f"Ray's death left {marked(mark)} and {left(before)}"

    late = make_learner(late=True)
    for _ in range(4):
        late.update()
    state = load_checkpoint(tmp_path / CHECKPOINT, torch.device("cpu"))
    assert state["update"] == 4
    assert digest(state) == digest(late.state_dict())
    assert [row["policy_lag"] for row in read_metrics(tmp_path / METRICS)] == [0, 1, 1, 1]
