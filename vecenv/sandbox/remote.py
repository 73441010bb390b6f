"""Engines on machines of others: a server of SandboxFusion, and virtual machines of E2B.

A service is asked for one thing alone: to run a program of Python and to tell what it printed. The program is
`vecenv.sandbox.inside.runner`, which runs the job within its limits, so that results mean the same everywhere.
Sources: https://bytedance.github.io/SandboxFusion (``POST /run_code``), https://e2b.dev/docs.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import http.client
import json
import logging
import math
import secrets
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from vecenv.sandbox.job import MB, Job, Result, Status, as_bytes, ended
from vecenv.sandbox.languages import Language

LOG = logging.getLogger("vecenv.sandbox")
RUNNER = (Path(__file__).parent / "inside" / "runner.py").read_text()
BASE = 64 * MB
"""Bytes that an interpreter may take beyond a job's memory."""
PAUSE = 0.1
"""Seconds before a service is asked again, doubled each time."""
MARGIN = 5.0
"""Seconds that the runner may take beyond a job's wall limit, before the service ends it."""


class Remote(ABC):
    """An engine that a service runs.

    A failure of the service is one of the sandbox: it raises, and the sample is masked. That is so for a service that
    is slow, and for one whose answer is none to the job that was asked; that it tells the truth cannot be known.

    Args:
        attempts: how often it is asked before a job counts as failed.
        patience: seconds that a job may take beyond its wall limit, all attempts and waiting at the service included.
    """

    name: str

    def __init__(self, attempts: int = 3, patience: float = 30.0) -> None:
        if attempts < 1 or not 0 < patience < math.inf:
            raise ValueError(f"a service is asked at least once and waited for, not {attempts} times, {patience} s")
        self.attempts, self.patience = attempts, patience

    @abstractmethod
    def printed(self, program: str, run: float, deadline: float, most: int) -> str:
        """Return what a program of Python printed, run by the service.

        Args:
            program: its text.
            run: seconds that it may take.
            deadline: of `time.monotonic`, when the answer is of no use any more.
            most: characters of the answer; more are no answer.

        Raises:
            Exception: the service failed.
        """

    def run(self, job: Job, language: Language) -> Result:
        """Run a job that has no fault.

        Raises:
            Exception: the service failed.
        """
        mark = secrets.token_hex(16)
        files = {language.file: job.source, **job.files}
        words = {"file": language.file, "megabytes": str(max(1, job.limits.memory // MB))}
        asked = {
            "mark": mark,
            "command": [word.format_map(words) for word in language.command],
            "file": language.file,
            "files": {name: _coded(content) for name, content in files.items()},
            "stdin": _coded(job.stdin),
            "memory": language.memory,
            "base": BASE + language.base,
            "limits": asdict(job.limits),
        }
        program = f"{RUNNER}\n\nmain(json.loads({json.dumps(asked)!r}))\n"
        began = time.monotonic()
        deadline = began + job.limits.wall + self.patience
        # In base 64, and what the service may print beside it.
        most = 3 * job.limits.output + (1 << 16)
        attempt = 0
        while True:
            attempt += 1
            try:
                said = self.printed(program, job.limits.wall + MARGIN, deadline, most)
                return self._result(job, mark, said, time.monotonic() - began)
            except Exception as error:
                pause = PAUSE * 2**attempt
                if attempt == self.attempts or time.monotonic() + pause > deadline:
                    raise
                LOG.warning("%s fails (%s), attempt %d of %d", self.name, error, attempt, self.attempts)
                time.sleep(pause)

    def _result(self, job: Job, mark: str, said: str, passed: float) -> Result:
        """Return what a service said became of a job, after some seconds by this machine's clock."""
        told = json.loads(said.rpartition(f"\n{mark}")[2].partition("\n")[0] if f"\n{mark}" in said else "null")
        match told:
            case {"missing": str(name)}:
                return Result(Status.REFUSED, message=f"{self.name} has no {name[:40]}, which runs {job.language}")
            case {
                "verdict": "" | "cpu" | "wall" | "output" as verdict,
                "exit_code": int(code),
                "cpu": float(cpu),
                "wall": float(wall),
                "stdout": str(out),
                "stderr": str(error),
            } if -64 <= code <= 255 and cpu >= 0 and 0 <= wall <= passed:
                try:
                    stdout, stderr = (base64.b64decode(each, validate=True) for each in (out, error))
                except binascii.Error:
                    raise ValueError(f"{self.name} gives an answer that cannot be read") from None
                limits = job.limits
                late = (verdict == "wall" and wall < limits.wall) or (verdict == "cpu" and cpu < limits.cpu)
                if not late and max(len(stdout), len(stderr)) <= limits.output:
                    return ended(verdict, code, stdout, stderr, cpu, wall, self.name)
        raise ValueError(f"{self.name} gives no answer to the job")


class SandboxFusion(Remote):
    """A server of SandboxFusion, by its documented HTTP alone: its own client waits for ever on a slow answer.

    Args:
        url: of the server, such as ``http://localhost:8080``.
        attempts, patience: as of `Remote`.
    """

    name = "sandbox_fusion"

    def __init__(self, url: str, attempts: int = 3, patience: float = 30.0) -> None:
        super().__init__(attempts, patience)
        self.parts = urlsplit(url)
        if self.parts.scheme not in ("http", "https") or not self.parts.netloc:
            raise ValueError(f"a server has an address such as http://localhost:8080, not {url!r}")

    def printed(self, program: str, run: float, deadline: float, most: int) -> str:
        asked = {"language": "python", "code": program, "compile_timeout": run, "run_timeout": run}
        told = json.loads(self._posted(json.dumps(asked).encode(), deadline, most))
        match told:
            case {"status": "Success", "run_result": {"status": "Finished", "stdout": str(printed)}}:
                return printed
            case {"status": str(status), "message": message}:
                raise OSError(f"the server says {status[:40]}: {str(message)[:200]}")
        raise ValueError("the server does not speak the protocol")

    def _posted(self, content: bytes, deadline: float, most: int) -> bytes:
        kind = http.client.HTTPSConnection if self.parts.scheme == "https" else http.client.HTTPConnection
        left = max(0.01, deadline - time.monotonic())
        connection = kind(self.parts.netloc, timeout=left)
        connection.connect()
        # The timeout of a socket is that of one read, which a server that trickles never passes.
        alarm = threading.Timer(left, _cut, (connection.sock,))
        alarm.daemon = True
        alarm.start()
        try:
            path = f"{self.parts.path.rstrip('/')}/run_code"
            connection.request("POST", path, content, {"Content-Type": "application/json"})
            response = connection.getresponse()
            answer = response.read(most + 1)
            if time.monotonic() >= deadline:
                raise TimeoutError("the server is too slow")
        finally:
            alarm.cancel()
            connection.close()
        if response.status != http.client.OK:
            raise OSError(f"the server says {response.status} {response.reason[:40]}")
        if len(answer) > most:
            raise ValueError("the server says too much")
        return answer


class E2B(Remote):
    """Virtual machines of E2B, a new one for each job (``pip install e2b-code-interpreter``).

    Args:
        options: of ``e2b_code_interpreter.Sandbox.create``, such as `template`, `api_key` or `domain`.
        attempts, patience: as of `Remote`.
    """

    name = "e2b"

    def __init__(self, options: Mapping[str, Any] | None = None, attempts: int = 3, patience: float = 30.0) -> None:
        super().__init__(attempts, patience)
        import e2b_code_interpreter

        self.begin = e2b_code_interpreter.Sandbox.create
        self.options = {"allow_internet_access": False, "retries": 0, **(options or {})}

    def printed(self, program: str, run: float, deadline: float, most: int) -> str:
        left = deadline - time.monotonic()
        # If this process is gone, the machine ends by itself.
        machine = self.begin(timeout=math.ceil(left), request_timeout=left, **self.options)
        parts: list[str] = []

        def keep(message: object) -> None:
            parts.append(str(message))
            if sum(map(len, parts)) > most:
                raise ValueError("the machine says too much")

        try:
            left = max(0.01, deadline - time.monotonic())
            execution = machine.run_code(program, on_stdout=keep, timeout=min(run, left), request_timeout=left)
        finally:
            with contextlib.suppress(Exception):
                machine.kill(request_timeout=MARGIN)
        if execution.error:
            raise OSError(f"the machine says {execution.error.name}: {str(execution.error.value)[:200]}")
        return "".join(parts)


def _cut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _coded(content: str | bytes) -> str:
    return base64.b64encode(as_bytes(content)).decode()
