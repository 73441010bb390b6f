"""Runs a job on a machine of a service: sent there as a program, with the job, since services know no limits.

An ordinary process keeps them as well as it can, and a job that ends it has no result. Python 3.8 or newer.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any, BinaryIO

PAUSE = 0.005
"""Seconds between two looks at the job."""


def main(job: dict[str, Any]) -> None:
    """Run a job in a folder of its own, and print its mark with what became of it, in JSON."""
    command = job["command"] or [sys.executable, job["file"]]
    if shutil.which(command[0]) is None:
        told = {"missing": command[0]}
    else:
        with tempfile.TemporaryDirectory() as box, tempfile.TemporaryFile() as stdin:
            for name, content in job["files"].items():
                with open(os.path.join(box, name), "wb") as file:
                    file.write(base64.b64decode(content))
            stdin.write(base64.b64decode(job["stdin"]))
            stdin.seek(0)
            told = _ended(job, command, box, stdin)
    print("\n" + job["mark"] + json.dumps(told), flush=True)


def _ended(job: dict[str, Any], command: list[str], box: str, stdin: BinaryIO) -> dict[str, Any]:
    limits = job["limits"]

    def confine() -> None:
        kinds = {
            "CPU": int(limits["cpu"]) + 1,
            job["memory"]: limits["memory"] + job["base"],
            "FSIZE": max(limits["files"], limits["output"] + 1),
            "NOFILE": limits["descriptors"],
            "CORE": 0,
        }
        for name, value in kinds.items():
            kind = getattr(resource, "RLIMIT_" + name)
            hard = resource.getrlimit(kind)[1]
            value = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(kind, (value, value))

    variables = {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8", "HOME": box, "PYTHONHASHSEED": "0"}
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as error:
        process = subprocess.Popen(
            command,
            stdin=stdin,
            stdout=out,
            stderr=error,
            cwd=box,
            env=variables,
            preexec_fn=confine,
            start_new_session=True,
        )
        began = time.monotonic()
        verdict, pid = "", 0
        while not pid:
            pid, status, used = os.wait4(process.pid, os.WNOHANG)
            if not pid and time.monotonic() - began > limits["wall"]:
                verdict = "wall"
                os.killpg(process.pid, signal.SIGKILL)
                pid, status, used = os.wait4(process.pid, 0)
            elif not pid:
                time.sleep(PAUSE)
        wall = time.monotonic() - began
        with contextlib.suppress(OSError):
            # Those that it left.
            os.killpg(process.pid, signal.SIGKILL)
        process.returncode = 0
        outputs, left = [], limits["output"]
        for file in (out, error):
            file.seek(0)
            outputs.append(file.read(limits["output"] + 1))
            left -= len(outputs[-1])
    cpu = used.ru_utime + used.ru_stime
    if cpu >= limits["cpu"] and os.WIFSIGNALED(status):
        verdict = "cpu"
    elif left < 0:
        verdict = verdict or "output"
    code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    stdout, stderr = (base64.b64encode(each[: limits["output"]]).decode() for each in outputs)
    return {
        "verdict": verdict,
        "exit_code": -signal.SIGKILL if verdict else code,
        "cpu": cpu,
        "wall": wall,
        "stdout": stdout,
        "stderr": stderr,
    }
