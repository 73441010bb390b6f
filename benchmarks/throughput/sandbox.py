"""Programs per second of the sandbox's engines, beside a Python process and a jail of its own for each program.

Every program prints the sum of a range; all have as many workers. Queues of two lengths show what waiting costs.
"""

from __future__ import annotations

import atexit
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from vecenv.benchmarks.harness import Point, Workload
from vecenv.benchmarks.throughput.cases import CaseConfig
from vecenv.sandbox import Job, Sandbox
from vecenv.sandbox.jail import INTERPRETER, bubblewrap, shown
from vecenv.sandbox.monty import Monty

SOURCE = "print(sum(range({})))"


def points_of_sandbox(config: CaseConfig) -> Sequence[Point]:
    return [Point("programs", partial(_programs, config))]


def _programs(config: CaseConfig) -> Sequence[Workload]:
    each, queues = config.sized((2, (4, 8)), (40, (400, 4000)))
    jail = Sandbox(engines=["jail"])
    atexit.register(jail.close)
    threads = ThreadPoolExecutor(jail.workers)
    within = [*bubblewrap(), *shown(Path(sys.base_prefix).resolve(), Path(sys.base_prefix).resolve())]

    def processes(words: Sequence[str]) -> None:
        def one(number: int) -> str:
            # The interpreter that the jail forks, started as quickly as it can be.
            asked = [*words, str(INTERPRETER), "-I", "-S", "-c", SOURCE.format(number % 100)]
            return subprocess.run(asked, capture_output=True, text=True, check=True).stdout

        _check(list(threads.map(one, range(each))))

    def queued(sandbox: Sandbox, count: int) -> None:
        _check([result.text for result in sandbox.run(Job(SOURCE.format(number % 100)) for number in range(count))])

    told = {"workers": jail.workers}
    found = [
        Workload("a python each", partial(processes, []), each, "programs", told=told),
        Workload("a bubblewrap each", partial(processes, within), each, "programs", told=told),
    ]
    for count in queues:
        name = f"jail, queue of {count:,}"
        found.append(Workload(name, partial(queued, jail, count), count, "programs", told=told))
    if Monty.installed():
        monty = Sandbox(engines=["monty", "jail"])
        atexit.register(monty.close)
        found.append(Workload("monty", partial(queued, monty, queues[1]), queues[1], "programs", told=told))
    return found


def _check(outputs: Sequence[str]) -> None:
    if list(outputs) != [f"{sum(range(number % 100))}\n" for number in range(len(outputs))]:
        raise RuntimeError("a program gave another output than it must")
