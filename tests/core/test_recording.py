"""A recorded rollout has the bits of an eager one and sees what is written, moved or not to be recorded."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.small_env import assert_same_bits, collected, make_env, random_actions
from vecenv.core import observed_rows
from vecenv.core.collector import FusedCollector
from vecenv.core.compiling import CompiledCall, compile_in_place
from vecenv.core.observed_rows import ObservedRows
from vecenv.core.recording import NotRecordable, Recording
from vecenv.kernels.materialise import materialise
from vecenv.system.native_library import built_library, compiler

NUM_ENVS, NUM_STEPS = 5, 12


class Twins:
    """A collector that records and an eager one, of given actions."""

    def __init__(self, num_steps: int = NUM_STEPS) -> None:
        self.recorded, self.eager = (
            FusedCollector(make_env(NUM_ENVS, compiled=flag), "given", num_steps=num_steps) for flag in (True, False)
        )
        self._rollouts = 0

    def differ(self) -> list[int]:
        """Roll both out, and return which tensors differ."""
        self._rollouts += 1
        for collector in (self.recorded, self.eager):
            collector.actions.copy_(random_actions(collector.num_steps, NUM_ENVS, 3, seed=self._rollouts))
            collector.rollout()
        pairs = zip(collected(self.recorded), collected(self.eager), strict=True)
        return [
            place for place, (one, other) in enumerate(pairs) if not torch.equal(one.nan_to_num(), other.nan_to_num())
        ]

    def write(self, name: str, value: float) -> None:
        for collector in (self.recorded, self.eager):
            collector.env.write_params({name: torch.tensor(value, dtype=torch.float64)})


@pytest.fixture(scope="module")
def twins() -> Twins:
    made = Twins()
    assert made.differ() == []
    return made


@pytest.mark.assembly
def test_replays_have_the_bits_of_eager_steps(twins):
    recording = twins.recorded._recording
    assert recording is not None
    for _ in range(2):
        assert twins.differ() == []
        assert_same_bits(collected(twins.recorded), collected(twins.eager))
    # Between rollouts rows are stepped, restarted, saved and loaded by others.
    for collector in (twins.recorded, twins.eager):
        collector.env.advance(random_actions(NUM_ENVS, 3), eager=True)
        collector.env.restart(torch.tensor([True, False, True, False, False]))
        saved = collector.env.state_dict()
        collector.rollout()
        collector.env.load_state_dict(saved)
    assert twins.differ() == [] and twins.recorded._recording is recording


@pytest.mark.assembly
def test_parameters_written_between_replays_are_read(twins):
    for rate in (0.05, 0.0):
        twins.write("commission", rate)
        assert twins.differ() == []
    twins.recorded.env.write_params({"commission": torch.tensor(0.5, dtype=torch.float64)})
    assert twins.differ(), "the commission costs nothing"
    twins.recorded.env.load_state_dict(twins.eager.env.state_dict())
    twins.write("commission", 0.0)
    assert twins.differ() == []


@pytest.mark.assembly
def test_moved_memory_and_another_number_of_threads_are_recorded_anew(twins, monkeypatch):
    assert twins.differ() == []
    rate = twins.recorded.env.scenario.params["commission"]
    first = twins.recorded._recording
    rate.set_(torch.full_like(rate, 0.05))
    twins.write("commission", 0.05)
    assert twins.differ() == [] and twins.recorded._recording is not first
    moved = twins.recorded._recording
    with monkeypatch.context() as patched:
        patched.setattr(torch, "get_num_threads", lambda: 3)
        assert twins.differ() == [] and twins.recorded._recording is not moved
    assert twins.differ() == []
    # The fault that the comparison of addresses is for.
    monkeypatch.setattr(Recording, "valid", lambda self, addresses: True)
    kept = torch.empty(0, dtype=rate.dtype).set_(rate)
    rate.set_(torch.full_like(rate, 0.5))
    twins.eager.env.write_params({"commission": rate})
    assert twins.differ() and kept.item() == 0.05
    monkeypatch.undo()
    twins.recorded.env.load_state_dict(twins.eager.env.state_dict())
    assert twins.differ() == []


@pytest.mark.assembly
def test_observations_past_the_caches_have_the_same_bits_and_see_another_market(twins, monkeypatch):
    monkeypatch.setattr(observed_rows, "LARGEST_CACHED", 0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert ObservedRows.of(twins.recorded.env, []) is None
    # The table of a market that is larger than the rollout would not pay.
    assert Twins(num_steps=1).recorded._observed_rows is None
    streamed = Twins(num_steps=5 * NUM_STEPS)
    assert streamed.recorded._observed_rows is not None
    for _ in range(3):
        assert streamed.differ() == []
        assert_same_bits(collected(streamed.recorded), collected(streamed.eager))
    assert streamed.recorded._recording is not None
    for write in (
        lambda env, features: env.write_shared({**env.scenario.shared, "features": features + 1}),
        # PyTorch does not count these.
        lambda env, features: features.data.add_(1),
        lambda env, features: np.add(features.numpy(), 1, out=features.numpy()),
    ):
        for collector in (streamed.recorded, streamed.eager):
            write(collector.env, collector.env.scenario.shared["features"])
        assert streamed.differ() == []
    # The fault that the comparison is for.
    monkeypatch.setattr(ObservedRows, "refresh", lambda self: None)
    for collector in (streamed.recorded, streamed.eager):
        shared = collector.env.scenario.shared
        collector.env.write_shared({**shared, "features": shared["features"] + 1})
    assert streamed.differ() != []


@pytest.mark.skipif(
    compiler() is None or torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"), reason="plain stores"
)
def test_stores_past_the_caches_are_fenced(tmp_path, monkeypatch):
    """Found in what is built: a thread that has got the rows by a lock sees them without a fence, too."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    unfenced = tmp_path / "unfenced.cpp"
    unfenced.write_text(observed_rows.SOURCE.read_text().replace("_mm_sfence();", ""))
    built = [built_library(source, *observed_rows.FLAGS) for source in (observed_rows.SOURCE, unfenced)]
    sfence = bytes.fromhex("0faef8")
    assert [library and sfence in Path(library._name).read_bytes() for library in built] == [True, False]


def spread(x: Tensor) -> list[Tensor]:
    return [((x - x.sum(0)) / 3).amax(0)]


def compiled(function: object, *inputs: Tensor) -> tuple[CompiledCall, list[Tensor]]:
    outputs = [torch.zeros_like(tensor) for tensor in function(*inputs)]
    call = compile_in_place(function, inputs, outputs)
    assert isinstance(call, CompiledCall)
    return call, outputs


def test_only_kernels_of_tensors_and_sizes_are_recorded():
    numbers = torch.arange(16.0).view(4, 4)
    for function in (lambda x: [x @ x + 1], lambda x: [x.cumsum(0)]):
        call, outputs = compiled(function, numbers)
        with pytest.raises(NotRecordable, match="it uses "):
            call.record([numbers], outputs, Recording([]))
    call, outputs = compiled(spread, numbers)
    recording = Recording([])
    for frozen in (0.5, True, None, "x", torch.zeros(2, device="meta")):
        with pytest.raises(NotRecordable, match="a kernel takes"):
            recording.add(torch.sin, [frozen])
    with pytest.raises(NotRecordable, match="257 arguments"):
        recording.add(torch.sin, [1] * 257)
    with pytest.raises(NotRecordable, match="cannot be found"):
        recording.add(torch.sin, [1])
    call.record([numbers], outputs, recording)
    assert recording.replay() and torch.equal(outputs[0], *spread(numbers))
    numbers.fill_(1)
    assert recording.replay() and torch.equal(outputs[0], *spread(numbers))


def test_copies_that_are_materialised_are_recorded():
    numbers = torch.arange(12.0).view(3, 4)

    def summed(x: Tensor) -> list[Tensor]:
        rows, columns = materialise([x.sum(0) + x[0], x.sum(1)])
        return [rows * 2, rows.flip(0) + columns.sum()]

    call, outputs = compiled(summed, numbers)
    recording = Recording([])
    call.record([numbers], outputs, recording)
    for _ in range(2):
        assert recording.replay() and all(map(torch.equal, outputs, summed(numbers)))
        numbers.mul_(-3)
    call, outputs = compiled(lambda x: [materialise([x.t()])[0] + 1], numbers)
    with pytest.raises(NotRecordable, match="not contiguous"):
        call.record([numbers], outputs, Recording([]))


def test_a_division_by_zero_is_told_and_ends_no_process():
    numbers, divisors = torch.arange(8), torch.ones(8, dtype=torch.int64)
    call, outputs = compiled(lambda x, y: [x // y], numbers, divisors)
    recording = Recording([])
    call.record([numbers, divisors], outputs, recording)
    assert recording.replay() and torch.equal(outputs[0], numbers)
    divisors[3] = 0
    assert not recording.replay()
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        call([numbers, divisors], outputs)
