"""`Sandbox`: a queue of jobs, engines that run them, and results in the order of the jobs."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Literal

from vecenv.sandbox.jail import Jail, confirmed_layers
from vecenv.sandbox.job import Job, Result, Status
from vecenv.sandbox.languages import LANGUAGES, Language
from vecenv.sandbox.monty import Monty
from vecenv.sandbox.remote import Remote

LOG = logging.getLogger("vecenv.sandbox")


class Sandbox:
    """Runs programs that may be hostile, as many at a time as there are workers; any number may wait.

    A result depends on its job alone, not on the number of workers or on the order. Each worker is a jail of its own,
    made when it is first needed, and made anew after a failure.

    Args:
        workers: jobs that run at a time; by default the number of processors.
        without: layers of the jail that the machine may lack, such as ``("landlock",)``; a warning names them.
        packages: packages of this interpreter that Python programs may import, such as ``("numpy",)``.
        engines: ``"monty"``, if it is installed, for what it can run, and then one for all else: ``"jail"``, or a
            `Remote` such as ``SandboxFusion("http://localhost:8080")``, which needs no layers of this machine.
        languages: the table of languages; a further one is a line: ``{**LANGUAGES, "awk": Language(...)}``.

    Attributes:
        counts: results so far by status; those of `Status.SANDBOX_FAILURE` are to be masked by who samples.

    Raises:
        ValueError: the machine lacks a layer that `without` does not name, or there is no such package.
    """

    def __init__(
        self,
        workers: int | None = None,
        without: Sequence[str] = (),
        packages: Sequence[str] = (),
        engines: Sequence[Literal["monty", "jail"] | Remote] = ("monty", "jail"),
        languages: Mapping[str, Language] = LANGUAGES,
    ) -> None:
        self.workers = len(os.sched_getaffinity(0)) if workers is None else workers
        if self.workers < 1:
            raise ValueError(f"a sandbox has at least one worker, not {self.workers}")
        last = engines[-1] if engines else None
        if (last != "jail" and not isinstance(last, Remote)) or any(each != "monty" for each in engines[:-1]):
            named = ", ".join(map(str, engines)) or "none"
            raise ValueError(f"engines are monty, if at all, and then jail or one that is remote; not {named}")
        self._remote = last if isinstance(last, Remote) else None
        self.layers = confirmed_layers(without) if len(engines) > 1 or not self._remote else ()
        self.packages, self.languages = tuple(packages), languages
        if without:
            warnings.warn(f"the jail is without {', '.join(sorted(without))}", stacklevel=2)
        self.counts: Counter[Status] = Counter()
        # Without namespaces it would see the files of the machine.
        simple = "monty" in engines and "namespaces" in self.layers and Monty.installed()
        self._monty = Monty(self.workers) if simple else None
        self._jails: dict[int, Jail] = {}
        # Jails end with the thread that made them, which is one of these.
        self._threads = ThreadPoolExecutor(self.workers, "sandbox")
        self._lock = threading.Lock()

    def submit(self, job: Job) -> Future[Result]:
        """Queue a job; the future never fails, and can be cancelled until the job begins."""
        return self._threads.submit(self._result, job)

    def run(self, jobs: Iterable[Job]) -> list[Result]:
        """Run jobs; return their results in the order of the jobs."""
        futures = [self.submit(job) for job in jobs]
        try:
            return [future.result() for future in futures]
        finally:
            for future in futures:
                future.cancel()

    async def answer(self, job: Job) -> Result:
        """Run a job without blocking the loop, as in `vecenv.AsyncInteraction`; cancelled, it leaves the queue."""
        return await asyncio.wrap_future(self.submit(job))

    def close(self) -> None:
        """End all workers; jobs that wait are cancelled."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for jail in list(self._jails.values()):
            jail.process.kill()
        self._threads.shutdown()
        # Also those that were still being made.
        while self._jails:
            self._jails.popitem()[1].close()
        if self._monty:
            self._monty.close()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _result(self, job: Job) -> Result:
        result = self._refusal(job) or (self._monty and self._monty.run(job)) or self._confined(job)
        with self._lock:
            self.counts[result.status] += 1
        return result

    def _refusal(self, job: Job) -> Result | None:
        language = self.languages.get(job.language)
        if language is None:
            why = f"there is no language {job.language[:40]!r}; there are {', '.join(self.languages)}"
        elif language.command and not self._remote and language.executable() is None:
            why = f"this machine has no {language.command[0]}, which runs {job.language}"
        elif language.file in job.files:
            why = f"a file cannot be called {language.file!r}, as the program is"
        else:
            why = job.fault()
        return Result(Status.REFUSED, message=why) if why else None

    def _confined(self, job: Job) -> Result:
        place = threading.get_ident()
        try:
            if self._remote:
                return self._remote.run(job, self.languages[job.language])
            if place not in self._jails:
                self._jails[place] = Jail(self.layers, self.packages, self.languages)
            return self._jails[place].run(job)
        except Exception as error:
            LOG.error("the sandbox failed", exc_info=error)
            if broken := self._jails.pop(place, None):
                broken.close()
            return Result(Status.SANDBOX_FAILURE, message=f"{type(error).__name__}: {error}")
