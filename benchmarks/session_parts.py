"""Jobs of the parts of a device session: points of the benchmarks, and the tests marked gpu.

Only sizes are chosen here: large ones that fill a GPU, and small ones for runs on a CPU that take seconds. A part
imports what it measures: the first ones are not to wait for all.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import vecenv
from vecenv.benchmarks import device as machine
from vecenv.benchmarks.session_child import Job, Place
from vecenv.registry import task_named

if TYPE_CHECKING:
    from vecenv.benchmarks.harness import Point
    from vecenv.benchmarks.throughput.command import Column, Mode
    from vecenv.core.env import VecEnv

COLUMNS: tuple[Column, ...] = ("environment", "without_observations", "policy", "training")

BUFFER_SHARE = 0.25
"""Share of a GPU's free memory for one rollout."""

TESTS = Path(vecenv.__file__).parents[1] / "tests"

PYTEST = ["-c", str(TESTS.parent / "pyproject.toml"), "-o", "addopts=", "-m", "gpu", "-p", "no:cacheprovider", "-ra"]
"""Without the project's options: parallel workers would share the device."""


def of_points(points: Sequence[Point], place: Place) -> Sequence[Job]:
    from vecenv.benchmarks.harness import measured

    def measure(point: Point) -> dict[str, Any]:
        figures = measured(point, torch.device(place.device), place.rounds)
        return {"headline": figures[-1].line(), "figures": [asdict(figure) for figure in figures]}

    return [Job(point.name, partial(measure, point)) for point in points]


def of_case(name: str, place: Place) -> Sequence[Job]:
    from vecenv.benchmarks.throughput.cases import CaseConfig, points_of

    size = "small" if place.small else "gpu"
    config = CaseConfig(name, device=place.device, size=size, compile=not place.small)  # type: ignore[arg-type]
    return of_points(points_of(config), place)


rollouts, turns, texts = (partial(of_case, name) for name in ("worldmodel_rollouts", "grpo_rollouts", "texts"))


def ceilings(place: Place) -> Sequence[Job]:
    """Return the copy bandwidth, the reference of all shares, and the rates of matrix products."""
    device = torch.device(place.device)
    size = 256 if place.small else 8192

    def bandwidth() -> dict[str, Any]:
        copies, writes = machine.copy_bandwidth(device), machine.write_bandwidth(device)
        told = f"copies {copies / 1e9:,.0f} GB/s, writes {writes / 1e9:,.0f} GB/s"
        return {"headline": told, "copy": copies, "write": writes, "device": machine.device_name(device)}

    def products(dtype: torch.dtype) -> dict[str, Any]:
        rate = machine.product_rate(size, size, size, dtype, device)
        return {"headline": f"{rate / 1e9:,.0f} GFLOP/s", "rate": rate, "clocks": machine.clocks(device)}

    dtypes = {"products float32": torch.float32, "products bfloat16": torch.bfloat16}
    return [Job("copy", bandwidth), *(Job(name, partial(products, dtype)) for name, dtype in dtypes.items())]


def curve_jobs(place: Place, task: str, counts: Sequence[int], columns: Sequence[Column] = COLUMNS) -> Sequence[Job]:
    """Return columns of ``vecenv bench`` at some numbers of environments, in the fastest mode, and at 2,048 in all."""
    from vecenv.benchmarks.throughput.command import BenchConfig
    from vecenv.benchmarks.throughput.curve import curve_point, tape_of_task

    device = torch.device(place.device)
    gpu = device.type == "cuda"
    gigabytes = BUFFER_SHARE * torch.cuda.mem_get_info(device)[0] / 1e9 if gpu else 4.0
    days, steps = (400, 2) if place.small else (3000, 64)
    sizes: dict[str, Any] = {} if task_named(task).market is None else {"num_days": days}
    config = BenchConfig(task, num_steps=steps, device=place.device, max_buffer_gb=gigabytes, **sizes)
    tape = cache(lambda: tape_of_task(config))
    copy = place.copy or machine.copy_bandwidth(device)
    best: Mode = "cuda_graph" if gpu else "eager"
    points = [curve_point(config, tape, column, best, count, copy) for count in counts for column in columns]
    slower: tuple[Mode, ...] = ("compiled", "eager") if gpu and 16 in counts else ()
    points += [curve_point(config, tape, column, mode, 2048, copy) for mode in slower for column in columns[:-1]]
    return of_points(points, place)


def throughput(place: Place) -> Sequence[Job]:
    """Return the published count, one that fills a GPU, and the largest that fits."""
    return curve_jobs(place, "stock_trading", (4,) if place.small else (2048, 65_536, 1_048_576))


def _trading(place: Place) -> tuple[Callable[[int], VecEnv], int, Sequence[int]]:
    """Return what makes an environment of stock trading of some rows, the steps of a rollout, and numbers of rows."""
    from vecenv.benchmarks.throughput.command import BenchConfig
    from vecenv.benchmarks.throughput.curve import tape_of_task

    days, steps, counts = (400, 2, (4,)) if place.small else (3000, 64, (65_536, 2048))
    tape = cache(lambda: tape_of_task(BenchConfig(num_days=days, device=place.device)))
    rules: dict[str, Any] = {
        "device": place.device,
        "compile": not place.small,
        "episode_length": 250,
        "min_episode_length": 125,
    }
    return lambda count: vecenv.make("stock_trading", count, market=tape(), **rules), steps, counts


def precisions(place: Place) -> Sequence[Job]:
    """Return updates of PPO in bfloat16 beside float32, of the network of the default preset and of a flat one."""
    from vecenv.benchmarks.harness import Point, Workload
    from vecenv.learn.ppo import PPO, PPOConfig

    make, steps, counts = _trading(place)

    def updates(policy: Any, hidden: tuple[int, ...], count: int) -> Sequence[Workload]:  # noqa: ANN401
        def update(precision: Any) -> Any:  # noqa: ANN401
            sizes: dict[str, Any] = {"policy": policy, "hidden": hidden, "num_steps": steps, "epochs": 1}
            return PPO(make(count), PPOConfig(**sizes, precision=precision, anneal=False)).update

        samples = count * steps
        first = Workload("float32", update("float32"), samples, "samples")
        return [first, Workload("bfloat16", update("bfloat16"), samples, "samples", beside=first.name)]

    networks = {"symbol": (32,), "flat": (64, 64)}
    sizes = [(policy, hidden, count) for count in counts for policy, hidden in networks.items()]
    return of_points([Point(f"PPO, {size[0]}, N={size[2]:,}", partial(updates, *size)) for size in sizes], place)


def peers(place: Place) -> Sequence[Job]:
    """Return steps and updates of PPO beside the same in JAX, or one job that tells why there is none."""
    from vecenv.benchmarks.harness import Point, Workload
    from vecenv.benchmarks.throughput.peers.comparison import steps, updates, why_without_jax
    from vecenv.learn.ppo import PPOConfig

    if (reason := why_without_jax(torch.device(place.device))) is not None:
        return [Job("JAX", lambda: {"headline": reason})]
    make, num_steps, counts = _trading(place)
    ppo = PPOConfig(num_steps=num_steps, anneal=False)

    def played(count: int) -> Sequence[Workload]:
        return steps(make(count), num_steps)

    def learned(count: int) -> Sequence[Workload]:
        return updates(make(count), ppo, place.rounds)

    made = {"steps": played, "PPO": learned}
    return of_points(
        [Point(f"{name}, N={count:,}", partial(of, count)) for count in counts for name, of in made.items()], place
    )


def tiers(place: Place) -> Sequence[Job]:
    """Return the largest tier in every column, then the others."""
    if place.small:
        return curve_jobs(place, "multi_stock_3", (4,))
    jobs = [
        *curve_jobs(place, "full_autonomous", (2048,)),
        *curve_jobs(place, "full_autonomous", (65_536,), COLUMNS[:3]),
    ]
    others = ("single_stock", "portfolio", "multi_stock_3", "single_stock_costs", "curriculum")
    return jobs + [job for task in others for job in curve_jobs(place, task, (65_536,), ("environment", "policy"))]


def books(place: Place) -> Sequence[Job]:
    """Return the market of agents, whose step sends messages to an order book."""
    return curve_jobs(place, "execution", (4,) if place.small else (4096, 65_536), COLUMNS[:1])


def curve(place: Place) -> Sequence[Job]:
    """Return the other counts, until the memory is exceeded, and the slower modes."""
    counts = (1, 16) if place.small else (16_384, 262_144, 4_194_304, 256, 16, 1)
    return curve_jobs(place, "stock_trading", counts)


def gpu_tests(place: Place, folder: Path = TESTS) -> Sequence[Job]:
    """Return the tests marked ``gpu``, one by one.

    A file that fails to load, or is skipped as a whole, is listed instead of its tests.

    Raises:
        FileNotFoundError: there are none, such as outside a checkout.
    """
    del place
    mark = re.compile(r"\bpytest\.mark\.gpu\b")
    files = [path for path in sorted(folder.rglob("test_*.py")) if mark.search(path.read_text())]
    if not files:
        raise FileNotFoundError(f"{folder}: no tests marked gpu")
    tests = [test for file in files for test in _tests_of(str(file))]
    return [Job(test.removeprefix(f"{folder}/"), partial(_run_test, test)) for test in tests]


def _tests_of(file: str) -> list[str]:
    """Return the tests of a file that are marked, or the file if there is no telling."""
    import pytest

    class Collected:
        tests: Sequence[str] = ()

        def pytest_collection_finish(self, session: pytest.Session) -> None:
            self.tests = [item.nodeid.partition("::")[2] for item in session.items]

    collected = Collected()
    pytest.main([file, "--collect-only", "-q", *PYTEST], plugins=[collected])
    return [f"{file}::{test}" for test in collected.tests] or [file]


def _run_test(test: str) -> dict[str, Any]:
    """Run a test, or a file's; pytest's report goes to the standard output."""
    import pytest

    counts, faults = Counter[str](), list[str]()

    class Outcomes:
        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            if report.when == "call" or report.outcome != "passed":
                self.count(report)

        def pytest_collectreport(self, report: pytest.CollectReport) -> None:
            if report.outcome != "passed":
                self.count(report)

        def count(self, report: pytest.TestReport | pytest.CollectReport) -> None:
            counts[report.outcome] += 1
            if report.failed:
                lines = [line for line in report.longreprtext.splitlines() if line.startswith("E ")]
                faults.append(lines[0][1:].strip() if lines else "failed")

    code = pytest.main([test, *PYTEST], plugins=[Outcomes()])
    if not faults and code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        faults.append(f"pytest ended with code {int(code)}")
    told = ", ".join(f"{count} {name}" if counts.total() > 1 else name for name, count in counts.items())
    return {"headline": told or "no tests", **counts, "faults": faults}
