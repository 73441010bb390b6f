"""Hostile programs fail, honest neighbours do not notice, and failures of the sandbox are its own."""

import asyncio
import io
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from vecenv.sandbox import LANGUAGES, Job, Language, Limits, Sandbox, Status, jail
from vecenv.sandbox.attacks import ATTACKS, ESCAPED, PRELUDE, failures
from vecenv.sandbox.inside import confine
from vecenv.tasks.commands import cli
from vecenv.text.interaction import AsyncInteraction, Episode, Turn

pytestmark = pytest.mark.skipif(bool(jail.lacking()), reason=f"no jail here: {dict(jail.lacking())}")

TIGHT = Limits(cpu=0.2, memory=64 << 20, output=1000, files=1 << 16)


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(1, engines=["jail"]) as made:
        yield made


PROGRAMS = {
    "print(input()[::-1], open('data').read())": (Status.OK, 0, "olleh of a file\n"),
    "import sys; print('x', file=sys.stderr); sys.exit(3)": (Status.ERROR, 3, ""),
    "exit('no')": (Status.ERROR, 1, ""),
    "exit(10 ** 30)": (Status.ERROR, 255, ""),
    "sys = 1; print(__name__, __file__)": (Status.OK, 0, "__main__ main.py\n"),
    "import atexit; atexit.register(print, 'late'); print('soon')": (Status.OK, 0, "soon\nlate\n"),
    "def f(n): return n if n < 2 else f(n - 1) + f(n - 2)\nprint(f(15))": (Status.OK, 0, "610\n"),
    "import os; os._exit(0)": (Status.OK, 0, ""),
    "import os; os.abort()": (Status.ERROR, -11, ""),
    "import data2; print(data2.x)": (Status.OK, 0, "5\n"),
    "import random; print(random.random())": (Status.OK, 0, "0.8444218515250481\n"),
    "while True: pass": (Status.CPU, -9, ""),
    "kept = bytearray(1 << 30)": (Status.MEMORY, 1, ""),
    "print('x' * 2000)": (Status.OUTPUT, -9, "x" * 1000),
    "import time\ntime.sleep(9)": (Status.WALL, -9, ""),
    "class A:\n    pass\nprint('ä', {A: 1}[A])": (Status.OK, 0, "ä 1\n"),
}


@pytest.mark.parametrize("source", PROGRAMS)
def test_a_program_ends_as_it_would_from_the_command_line(sandbox, source):
    limits = replace(TIGHT, wall=0.3) if "sleep" in source else TIGHT
    files = {"data": "of a file", "data2.py": "x = 5"}
    (result,) = sandbox.run([Job(source, stdin="hello\n", files=files, limits=limits)])
    assert (result.status, result.exit_code, result.text) == PROGRAMS[source], result
    assert (result.ok, result.masked, result.engine) == (result.status is Status.OK, False, "jail")


def test_time_and_memory_are_the_programs_own(sandbox):
    """Not those of what it is given, and those of children that it does not wait for as well."""
    least = Limits(cpu=0.02, memory=1 << 20)
    given = Job("print(1)", files={"a": bytes(15 << 20)}, limits=least)
    left = Job(
        "import os\nfor _ in range(3):\n    if not os.fork():\n        while True: pass\nos.wait()",
        limits=Limits(processes=4, cpu=0.3),
    )
    first, second = sandbox.run([given, left])
    assert first.text == "1\n" and second.status is Status.CPU and second.cpu > 0.29, (first, second)


def test_a_traceback_shows_the_program_alone(sandbox):
    (result,) = sandbox.run([Job("def f():\n    return 1 / 0\nf()")])
    lines = [line.strip() for line in result.stderr.decode().splitlines()]
    assert [line for line in lines if "File" in line or "Error" in line] == [
        'File "main.py", line 3, in <module>',
        'File "main.py", line 2, in f',
        "ZeroDivisionError: division by zero",
    ]
    assert "return 1 / 0" in lines


MANY = "the program and its 1001 files do not fit in 16,777,216 bytes for 1,000 files"
REFUSED = [
    (Job("x" * 1001, limits=Limits(source=1000)), "the program has 1,001 bytes; at most 1,000 are run"),
    (Job(b"\xff"), "the program is not UTF-8"),
    (Job("\ud800"), "the program is not UTF-8"),
    (Job("\0"), "the program has a null character"),
    (Job("1", "cobol"), "there is no language 'cobol'; there are python, javascript, shell, sql, absent"),
    (Job("1", "absent"), "this machine has no no-such-program, which runs absent"),
    (Job("1", stdin="12345", limits=Limits(inputs=4)), "standard input and files have 5 bytes; at most 4 are given"),
    (Job("1" * 70_000, limits=TIGHT), "the program and its 0 files do not fit in 65,536 bytes for 1,000 files"),
    (Job("1", files=dict.fromkeys(map(str, range(1001)), "")), MANY),
    (Job("1", "shell", files={"main.sh": "2"}), "a file cannot be called 'main.sh', as the program is"),
]


def test_what_cannot_be_run_is_refused_with_a_sentence():
    files = [Job("1", files={name: ""}) for name in ("../x", "/etc/x", "..", "", "a\0")]
    languages = {**LANGUAGES, "absent": Language(("no-such-program",), "x")}
    with Sandbox(1, languages=languages) as sandbox:
        results = sandbox.run([*(job for job, _ in REFUSED), *files])
        assert not sandbox._jails and sandbox.counts == {Status.REFUSED: len(results)}
    told = [result.message for result in results]
    assert told[: len(REFUSED)] == [told for _, told in REFUSED]
    assert all(one.endswith("names have no path") for one in told[len(REFUSED) :])
    assert {result.status for result in results} == {Status.REFUSED}


SPOKEN = {
    "javascript": ("console.log(require('fs').readFileSync(0, 'utf8').trim() + [3, 1, 2].sort())", "hey1,2,3\n"),
    "shell": ("read x; echo $x | tr e a; for i in 1 2; do echo $i & done | sort; wait", "hay\n1\n2\n"),
    "sql": ("create table t(x); insert into t values (1), (2); select sum(x) from t;", "3\n"),
    "awk": ("{ print $1 $1 }", "heyhey\n"),
}


@pytest.mark.parametrize("language", SPOKEN)
def test_other_languages_are_lines_of_a_table(language):
    table = {**LANGUAGES, "awk": Language(("awk", "-f", "{file}"), "main.awk")}
    if table[language].executable() is None:
        pytest.skip(f"no {table[language].command[0]} here")
    source, expected = SPOKEN[language]
    with Sandbox(1, languages=table) as sandbox:
        job = Job(source, language, "hey\n", limits=Limits(memory=16 << 20))
        result, escaped = sandbox.run([job, Job("cat /etc/passwd >&2; ls /root", "shell")])
    assert (result.status, result.text) == (Status.OK, expected), result
    assert escaped.status is Status.ERROR and not escaped.stdout


@pytest.mark.assembly
def test_numpy_is_warm_where_it_is_asked_for():
    jobs = [Job("import numpy as np; print(np.arange(4).sum(), np.random.rand() < 1)"), Job("import torch")]
    with Sandbox(1, packages=["numpy"]) as sandbox:
        first, second = sandbox.run(jobs)
    assert first.text == "6 True\n" and first.cpu < 0.2, first
    assert b"No module named 'torch'" in second.stderr
    with pytest.raises(ValueError, match="there is no package 'nothing' to import in the jail"), Sandbox(1) as sandbox:
        jail.Jail(sandbox.layers, ["nothing"])


def answered(program: bytes, number: int, *arguments: int) -> int:
    """What a filter says of a call: classic BPF, as far as it is used."""
    given = {0: number, 4: confine.X86_64, **{16 + 8 * place: value for place, value in enumerate(arguments)}}
    place = value = 0
    while True:
        code, yes, no, constant = struct.unpack_from("=HBBI", program, 8 * place)
        if code == 0x06:
            return constant
        if code == 0x20:
            value, jump = given.get(constant, 0), 0
        else:
            jump = yes if {0x15: value == constant, 0x35: value >= constant, 0x45: value & constant}[code] else no
        place += 1 + jump


@pytest.mark.parametrize("processes", [False, True])
def test_the_filter_denies_what_the_tables_say(processes):
    program, begins = confine._filter(processes, shared=False), (confine.CLONE, confine.FORK, confine.VFORK)
    for number in range(600):
        denied = number in confine.DENIED.values() or (number in begins and not processes)
        denied |= number >= confine.FIRST_NEW and number not in confine.NEWER_ALLOWED
        assert (answered(program, number) == 0x7FFF0000) != denied, number
    assert answered(program, confine.FCNTL, 0, confine.NOTIFY) == answered(program, confine.MMAP, 0, 0, 0, 1) == 0x50001
    namespace = answered(program, confine.CLONE, 0x10000000)
    assert namespace == (0x50000 | (confine.EPERM if processes else confine.EAGAIN))


def honest(number: int) -> tuple[Job, str]:
    source = f"n = int(input())\nopen('own', 'w').write(str(n))\nprint({number} + sum(range(n)), open('own').read())"
    n = number * 37 % 1000
    return Job(source, stdin=f"{n}\n"), f"{number + n * (n - 1) // 2} {n}\n"


def descendants() -> int:
    """Number of processes below this one."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(stat.parent.name)] = int(fields[1])
    found, last = {os.getpid()}, 0
    while len(found) > last:
        last, found = len(found), found | {pid for pid, parent in parents.items() if parent in found}
    return len(found)


def left_overs() -> tuple[int, ...]:
    mounts = Path("/proc/self/mountinfo").read_text().count("\n")
    boxes = len(list(Path(tempfile.gettempdir()).glob("vecenv-box-*")))
    return descendants(), len(os.listdir("/proc/self/fd")), threading.active_count(), mounts, boxes


@pytest.mark.parametrize(
    ("neighbours", "rounds"),
    [pytest.param(60, 1, marks=pytest.mark.assembly), pytest.param(500, 20, marks=pytest.mark.nightly)],
)
def test_attacks_among_honest_neighbours_cost_their_own_rows_alone(neighbours, rounds):
    before = left_overs()
    with Sandbox(2, engines=["jail"]) as sandbox:
        sandbox.run([Job("1")] * 8)
        warm = descendants()
        for seed in range(rounds):
            asked = [(job, text) for job, text in map(honest, range(neighbours))]
            # As many programs come from the attacks, so that every other one is hostile.
            asked += [(job, attack) for attack in ATTACKS for job in attack.jobs()[:1]]
            random.Random(seed).shuffle(asked)
            for (_, right), result in zip(asked, sandbox.run([job for job, _ in asked]), strict=True):
                if isinstance(right, str):
                    assert (result.status, result.text) == (Status.OK, right), result
                else:
                    assert not right.fault([result]), (right.name, result)
        assert sandbox.counts[Status.SANDBOX_FAILURE] == 0
        assert descendants() == warm
    assert left_overs() == before


BARE = [
    "fork bomb",
    "passwords",
    "the network",
    "memory bomb",
    "signals to others",
    "tracing",
    "a link out of its folder",
]
BARE += ["files for the next program", "the warm interpreter", "memory in nameless files", "a namespace by unshare"]
"""Attacks that fail without namespaces too."""


@pytest.mark.assembly
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another")
def test_the_attacks_fail_for_a_user_without_rights():
    """In a copy that everyone can read, by the system's interpreter."""
    python = "/usr/bin/python3"
    known = shutil.which(python) and subprocess.run(
        [python, "-c", "import sys; assert sys.version_info >= (3, 11)"], capture_output=True
    )
    if not known or known.returncode or not shutil.which("setpriv"):
        pytest.skip("no interpreter that others may use")
    program = (
        "import json\nfrom vecenv.sandbox.sandbox import Sandbox\nfrom vecenv.sandbox.attacks import failures\n"
        "with Sandbox(1) as sandbox: print(json.dumps(failures(sandbox)))\n"
        f"with Sandbox(1, without=['namespaces']) as sandbox: print(json.dumps(failures(sandbox, {BARE!r})))"
    )
    with tempfile.TemporaryDirectory() as folder:
        for part in ("__init__.py", "sandbox", "system"):
            source = Path(jail.__file__).parents[1] / part
            target = Path(folder, "vecenv", part)
            target.parent.mkdir(exist_ok=True)
            (shutil.copytree if source.is_dir() else shutil.copy)(source, target)
        subprocess.run(["chmod", "-R", "a+rX", folder], check=True)
        words = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", python, "-c", program]
        done = subprocess.run(words, cwd=folder, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    faults, bare = map(json.loads, done.stdout.splitlines())
    assert len(faults) == len(ATTACKS) >= 24 and not any(faults.values()), faults
    assert len(bare) == len(BARE) and not any(bare.values()), bare


HARMLESS = ["passwords", "the project", "other mounts", "the network", "variables of the outside", "what /proc tells"]
HARMLESS += ["a namespace by clone3", "tracing", "descriptors of others", "memory in nameless files"]


def test_attacks_succeed_outside_of_the_jail():
    """Those that do no harm: the others' signs of success are the same functions."""
    for attack in ATTACKS:
        if attack.name in HARMLESS and (os.geteuid() == 0 or attack.name not in HARMLESS[-4:]):
            with open(os.devnull) as kept:
                words = [sys.executable, "-c", PRELUDE + attack.source]
                done = subprocess.run(words, capture_output=True, text=True, pass_fds=[kept.fileno()])
            assert ESCAPED in done.stdout, attack.name


def test_results_do_not_depend_on_the_number_of_workers():
    jobs = [job for job, _ in map(honest, range(12))] + [Job("print(hash('a')); 1 / 0")]
    told = []
    for workers in (1, 3):
        with Sandbox(workers) as sandbox:
            results = sandbox.run(jobs)
            told.append([(one.status, one.exit_code, one.stdout, one.stderr) for one in results])
    assert told[0] == told[1] and [text.decode() for _, _, text, _ in told[0][:12]] == [honest(i)[1] for i in range(12)]


def test_a_failure_of_the_sandbox_is_none_of_the_program(sandbox):
    """A worker that dies costs a masked sample, and the next job has a new one."""
    sandbox.run([Job("1")])
    before, (worker,) = sandbox.counts[Status.SANDBOX_FAILURE], sandbox._jails.values()
    running = sandbox.submit(Job("while True: pass", limits=Limits(cpu=60.0, wall=60.0)))
    time.sleep(0.05)
    worker.process.kill()
    assert running.result().masked and "EOFError" in running.result().message
    assert sandbox.counts[Status.SANDBOX_FAILURE] == before + 1
    assert sandbox.run([Job("print(1)")])[0].text == "1\n"


def test_jobs_that_wait_can_be_cancelled(sandbox):
    sandbox.run([Job("1")])
    running = sandbox.submit(Job("while True: pass", limits=Limits(cpu=0.3)))
    waiting = sandbox.submit(Job("1"))
    assert waiting.cancel() and running.result().status is Status.CPU


class Calculator(AsyncInteraction):
    """Runs what it is told."""

    num_rows, deadline = 3, 20.0

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox

    async def begin_row(self, row: int, episode: Episode) -> Turn:
        return Turn("Write a program.")

    async def answer_row(self, row: int, message: str) -> Turn:
        result = await self.sandbox.answer(Job(message))
        return Turn(result.text, terminated=True, grade=float(result.ok))


def test_an_interaction_awaits_its_results(sandbox):
    turns = asyncio.run(Calculator(sandbox).answer([0, 1, 2], ["print(1)", "1 / 0", "print(3)"]))
    assert [(turn.shown, turn.grade) for turn in turns] == [("1\n", 1.0), ("", 0.0), ("3\n", 1.0)]


def test_a_missing_layer_is_named_and_must_be_confirmed(monkeypatch):
    with pytest.warns(UserWarning, match="the jail is without seccomp"), Sandbox(1, ["seccomp"]) as sandbox:
        (kept,) = (attack for attack in ATTACKS if attack.name == "output that does not end with it")
        assert [result.ok for result in sandbox.run(kept.jobs())] == [True, True]
    monkeypatch.setattr(jail, "lacking", lambda: {"landlock": "the kernel is old"})
    with pytest.raises(ValueError, match="no jail without landlock: the kernel is old; name it in without="):
        Sandbox(1)
    with pytest.warns(UserWarning, match="the jail is without landlock"):
        sandbox = Sandbox(1, without=["landlock"])
    with sandbox:
        named = {attack.name: attack for attack in ATTACKS}
        for name in ("passwords", "the project", "other mounts", "a namespace by unshare"):
            fault = named[name].fault(sandbox.run(named[name].jobs()))
            # Folders of the jail itself can be listed then, but hold nothing.
            assert not fault or name == "other mounts", fault
    with pytest.raises(ValueError, match="without namespaces both landlock and seccomp must hold"):
        Sandbox(1, without=["namespaces", "landlock"])
    with pytest.raises(ValueError, match="there is no layer 'walls'"):
        Sandbox(1, without=["walls"])


def test_without_namespaces_landlock_and_the_filter_hold():
    if os.geteuid() == 0 and jail._closed(Path(sys.base_prefix)):
        with pytest.raises(ValueError, match="without namespaces jobs run as a user who cannot read"):
            Sandbox(1, without=["namespaces"])
        return
    with pytest.warns(UserWarning, match="the jail is without namespaces"):
        sandbox = Sandbox(1, without=["namespaces"])
    with sandbox:
        assert not any(failures(sandbox, BARE).values())
        assert sandbox.run([Job("1", "shell")])[0].message == "without namespaces a job has one process"
        assert sandbox.run([Job("print(open('a').read())", files={"a": "b"})])[0].text == "b\n"


def test_a_program_runs_from_the_command_line(tmp_path, capsys, monkeypatch):
    (tmp_path / "hello.py").write_text("print(ascii(input()))\nraise SystemExit(4)")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff\n")))
    assert cli.main(["sandbox", "run", str(tmp_path / "hello.py"), "--json", str(tmp_path / "result.json")]) == 0
    assert json.loads((tmp_path / "result.json").read_text())["status"] == "error"
    assert capsys.readouterr().out.splitlines()[0] == "'\\udcff'"
    assert cli.main(["sandbox", "run", str(tmp_path / "none.py")]) == cli.BAD_INPUT
