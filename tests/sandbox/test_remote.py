"""Services that run programs: what they answer is a result, and whatever else they do is no program's fault."""

import contextlib
import itertools
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from unittest.mock import patch

import pytest

from vecenv.sandbox import E2B, Job, Limits, Sandbox, SandboxFusion, Status, remote


def printed_by(program: str) -> str:
    """What a program of Python prints, run in this process; a service would start another."""
    lines = ["before\n"]
    exec(program, {"__name__": "__service__", "print": lambda text, flush: lines.append(text + "\n")})
    return "".join(lines)


OVER = threading.Event()
"""The end of the server."""


class Service(BaseHTTPRequestHandler):
    """Speaks what the clients need of SandboxFusion and of E2B, and fails as it is told to."""

    faults: itertools.chain = itertools.chain()
    kept: list[str] = []  # noqa: RUF012
    living: set[str] = set()  # noqa: RUF012

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with threading.Lock():
            fault = next(self.faults, "")
        if self.path.endswith("/sandboxes"):
            name = f"m{time.monotonic_ns()}"
            self.living.add(name)
            told = {"templateID": "t", "sandboxID": name, "clientID": "c", "envdVersion": "0.4.0", "domain": None}
            return self.said(json.dumps(told), 201)
        self.kept.append(self.path)
        if fault == "hangs":
            OVER.wait()
            return None
        if fault == "trickles":
            self.send_response(200)
            self.end_headers()
            with contextlib.suppress(OSError):
                while not OVER.wait(0.02):
                    self.wfile.write(b" ")
            return None
        if fault == "fails":
            return self.said("busy", 503)
        if fault == "babbles":
            return self.said("<html>" * 100_000)
        printed = printed_by(asked["code"])
        if fault == "replays":
            printed = printed.replace("\n", "\n0", 2)
        run = {"status": "Finished", "return_code": 0, "stdout": printed, "stderr": ""}
        told = {"status": "Success", "message": "", "run_result": run}
        if fault == "errs":
            told = {"status": "SandboxError", "message": "no runner", "run_result": None}
        if self.path == "/execute":
            lines = [{"type": "stdout", "text": part, "timestamp": 0} for part in printed.splitlines(keepends=True)]
            return self.said(
                "\n".join(map(json.dumps, [*lines, {"type": "number_of_executions", "execution_count": 1}]))
            )
        return self.said(json.dumps(told))

    def do_DELETE(self) -> None:
        self.living.discard(self.path.rpartition("/")[2])
        self.said("", 204)

    def said(self, text: str, code: int = 200) -> None:
        with contextlib.suppress(OSError):
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def address():
    class Server(ThreadingHTTPServer):
        request_queue_size = 1000

    with Server(("127.0.0.1", 0), Service) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        OVER.set()
        server.shutdown()
        thread.join()


@pytest.fixture
def told(address):
    """Services by name, and a way to tell the server its next faults."""

    def fail(*faults: str) -> None:
        Service.faults = itertools.chain(faults)
        Service.kept.clear()

    fail()
    return address, fail


def engine(name: str, address: str, **options: float) -> SandboxFusion | E2B:
    if name == "sandbox_fusion":
        return SandboxFusion(address, **options)
    pytest.importorskip("e2b_code_interpreter")
    return E2B({"api_key": "e2b_0", "api_url": address, "sandbox_url": address}, **options)


ENGINES = ["sandbox_fusion", "e2b"]
SHORT = Limits(cpu=1.0, wall=5.0, output=1000)
PROGRAMS = {
    "print(input()[::-1], open('data').read())": (Status.OK, 0, "olleh of a file\n"),
    "import sys; sys.exit(3)": (Status.ERROR, 3, ""),
    "import os; os.abort()": (Status.ERROR, -6, ""),
    "print('x' * 2000)": (Status.OUTPUT, -9, "x" * 1000),
    "raise MemoryError": (Status.MEMORY, 1, ""),
    "import time\ntime.sleep(9)": (Status.WALL, -9, ""),
}


@pytest.mark.parametrize("name", ENGINES)
def test_a_program_ends_on_a_service_as_it_would_here(told, name):
    address, _ = told
    files = {"data": "of a file"}
    jobs = [
        Job(source, stdin="hello\n", files=files, limits=Limits(wall=0.2, output=1000) if "sleep" in source else SHORT)
        for source in PROGRAMS
    ]
    jobs += [Job("echo $((6 * 7))", "shell"), Job("1", "absent")]
    with Sandbox(4, engines=[engine(name, address)]) as sandbox:
        results = sandbox.run(jobs)
    assert [(one.status, one.exit_code, one.text) for one in results[:-2]] == list(PROGRAMS.values())
    assert {one.engine for one in results[:-1]} == {name} and results[-2].text == "42\n"
    assert results[-1].status is Status.REFUSED and not Service.living


ECHO = Job("echo 1", "shell", limits=SHORT)


@pytest.mark.parametrize("fault", ["fails", "babbles", "errs", "replays"])
def test_a_service_that_fails_is_asked_again_and_then_masked(told, fault):
    address, fail = told
    with Sandbox(1, engines=[SandboxFusion(address, attempts=2)]) as sandbox, patch.object(remote, "PAUSE", 0.0):
        fail(fault)
        assert sandbox.run([ECHO])[0].text == "1\n" and len(Service.kept) == 2
        fail(fault, fault)
        (result,) = sandbox.run([ECHO])
        assert result.masked and len(Service.kept) == 2 and sandbox.counts[Status.SANDBOX_FAILURE] == 1


TRUE = {"verdict": "", "exit_code": 0, "cpu": 0.1, "wall": 0.2, "stdout": "eA==", "stderr": ""}
FALSE = [
    {"verdict": "wall"},
    {"verdict": "cpu"},
    {"verdict": "memory"},
    {"stdout": "eHh4" * 10_000},
    {"stdout": "?"},
    {"exit_code": "0"},
    {"exit_code": 10**9},
    {"wall": 1e9},
    {"cpu": float("nan")},
]
"""What a service says that cannot be."""


def test_a_service_is_not_believed_what_cannot_be():
    service = SandboxFusion("http://localhost")

    def believed(told: object, mark: str = "mark") -> bytes:
        return service._result(ECHO, "mark", f"\n{mark}{json.dumps(told)}\n", 0.5).stdout

    assert believed(TRUE) == b"x"
    for answer, mark in [*(({**TRUE, **each}, "mark") for each in FALSE), (TRUE, "kram"), ([], "mark")]:
        with pytest.raises(ValueError, match="sandbox_fusion gives"):
            believed(answer, mark)


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("fault", ["hangs", "trickles"])
def test_a_service_that_is_slow_is_not_waited_for(told, name, fault):
    """It would go on for ever."""
    address, fail = told
    fail(*[fault] * 9)
    with Sandbox(1, engines=[engine(name, address, patience=0.1)]) as sandbox:
        assert sandbox.run([Job("print(1)", limits=Limits(wall=0.1))])[0].masked
    assert len(Service.kept) == 1


def test_order_is_kept_while_a_service_fails_now_and_then(told):
    address, fail = told
    fail(*["fails", "", "errs"] * 5)
    jobs = [Job(f"echo {number}", "shell", limits=SHORT) for number in range(8)]
    service = SandboxFusion(address, attempts=30)
    with Sandbox(8, engines=[service]) as sandbox, patch.object(remote, "PAUSE", 0.0):
        assert [result.text for result in sandbox.run(jobs)] == [f"{number}\n" for number in range(8)]


def test_no_server_is_a_failure_and_no_address_is_refused():
    with Sandbox(1, engines=[SandboxFusion("http://127.0.0.1:9", attempts=1)]) as sandbox:
        result, refused = sandbox.run([Job("1"), Job("1", files={"main.py": ""})])
    assert result.masked and "ConnectionRefused" in result.message and refused.status is Status.REFUSED
    with pytest.raises(ValueError, match="a server has an address such as http://localhost:8080, not 'localhost'"):
        SandboxFusion("localhost")
    with pytest.raises(ValueError, match="a service is asked at least once and waited for, not 0 times"):
        SandboxFusion("http://localhost", attempts=0)
