"""Programs that try to leave the jail, to outlive it, or to take more than their share, and how each must end.

The tests run them among honest neighbours, and ``vecenv sandbox doctor`` on the machine that asks. A program that
succeeds prints `ESCAPED`.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from vecenv.sandbox.job import MB, Job, Limits, Result, Status
from vecenv.sandbox.sandbox import Sandbox

ESCAPED = "ESCAPED"

PRELUDE = f"""
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def escaped(*what): os.write(1, b"{ESCAPED}" + repr(what).encode())
def gives(call, *args):
    try:
        value = call(*args)
    except Exception:
        return
    if value is None or not isinstance(value, int) or value >= 0: escaped(value)
def system(number, *args):
    gives(libc.syscall, ctypes.c_long(number), *args)
def reads(path):
    gives(lambda: open(path, "rb").read(1))
def child():
    try:
        return os.fork()
    except OSError:
        return 1
"""

# Half a second, because the pages of the memory bomb have cost a busy machine 0.2 s of its processor.
QUICK = Limits(cpu=0.5, wall=15.0, memory=128 * MB, output=1 << 16, files=1 << 20)
ENDED = (Status.OK, Status.ERROR)


@dataclass(frozen=True)
class Attack:
    """A program that must fail.

    Attributes:
        name: what it tries.
        source: the program, below `PRELUDE`.
        ends: the statuses that are right.
        then: a program that the same worker runs next, and that must find nothing either.
        processes: limit of processes.
        language: its language; other than Python, without `PRELUDE`.
        wall: limit of the clock, in seconds.
    """

    name: str
    source: str
    ends: tuple[Status, ...] = ENDED
    then: str = ""
    processes: int = 1
    language: str = "python"
    wall: float = QUICK.wall

    def jobs(self) -> list[Job]:
        """Return the program, and what comes after it."""
        limits = replace(QUICK, processes=self.processes, wall=self.wall)
        before = PRELUDE if self.language == "python" else ""
        return [Job(before + source, self.language, limits=limits) for source in (self.source, self.then) if source]

    def fault(self, results: list[Result]) -> str:
        """Return what is wrong with the results of `jobs`, empty if the attack failed as it must."""
        for result in results:
            if ESCAPED.encode() in result.stdout:
                return f"it got {result.text[:200]}"
        if results[0].status not in self.ends:
            return f"it ended as {results[0].status}: {results[0].message or results[0].stderr[-200:].decode()}"
        if len(results) > 1 and results[1].status is not Status.OK:
            return f"the next program ended as {results[1].status}: {results[1].stderr[-200:].decode()}"
        return ""


ATTACKS = (
    Attack("fork bomb", "while True: os.fork()", (Status.ERROR,)),
    Attack("fork bomb within a limit of eight", "while True: child()", (Status.CPU,), processes=8),
    Attack(
        "thread bomb",
        "import threading, time\nfor _ in range(99): threading.Thread(target=time.sleep, args=(9,)).start(); escaped()",
        (Status.ERROR,),
    ),
    Attack("memory bomb", "kept = []\nwhile True: kept.append(bytearray(1 << 24))", (Status.MEMORY,)),
    Attack("memory in nameless files", "system(319, b'x', 0); system(447, 0)"),
    Attack(
        "memory shared by System V", "system(29, 7, 1 << 20, 0o1666); system(68, 7, 0o1666); system(64, 7, 1, 0o1666)"
    ),
    Attack(
        "memory shared by name", "gives(os.open, '/dev/shm/x', os.O_CREAT | os.O_RDWR); system(240, b'x', 66, 384, 0)"
    ),
    Attack(
        "memory that is none of its data",
        "const {spawnSync} = require('child_process')\n"
        'const kept = \'import mmap; mmap.mmap(-1, 1 << 30).write(bytes(1)); print("ESC" + "APED")\'\n'
        "console.log(spawnSync('/usr/bin/python3', ['-c', kept]).stdout?.toString())",
        (*ENDED, Status.REFUSED),
        language="javascript",
        wall=60.0,
    ),
    Attack("output flood", "while True: os.write(1 + (os.getpid() % 2), b'x' * 4096)", (Status.OUTPUT,)),
    Attack(
        "file flood",
        "try:\n for i in range(99):\n  with open(f'f{i}', 'wb') as file: file.write(bytes(1 << 19))\n escaped()\n"
        "except OSError: pass",
    ),
    Attack(
        "a hundred thousand files", "for i in range(100_000): open(str(i), 'w').close()\nescaped()", (Status.ERROR,)
    ),
    Attack(
        "files for the next program",
        "for place in ('.', '/tmp', '/dev', '/dev/shm', '/', '/box'):\n"
        "    try: open(place + '/left', 'w').write('x')\n    except OSError: pass",
        then="for place in ('.', '/tmp', '/dev', '/dev/shm', '/', '/box'):\n"
        "    if os.path.exists(place + '/left'): escaped(place)",
    ),
    Attack(
        "processor for ever",
        "import signal\nfor each in range(1, 64):\n    try: signal.signal(each, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\nwhile True: pass",
        (Status.CPU,),
    ),
    Attack("processor inside one operation", "9 ** 9 ** 9", (Status.CPU,)),
    Attack(
        "limits lifted",
        "import resource\nfor kind in range(16):\n"
        "    low, high = resource.getrlimit(kind)\n"
        "    if high != -1: gives(resource.setrlimit, kind, (high + 1, high + 1))",
    ),
    Attack("sleep for ever", "import time\ntime.sleep(1e6)", (Status.WALL,), wall=0.4),
    Attack(
        "stopping itself",
        "import signal, time\nos.kill(os.getpid(), signal.SIGSTOP); time.sleep(1e6)",
        (Status.WALL,),
        wall=0.4,
    ),
    Attack(
        "passwords",
        "reads('/etc/shadow'); reads('/etc/passwd'); gives(os.listdir, '/root'); gives(os.listdir, '/home')",
    ),
    Attack("the project", f"reads({str(Path(__file__).resolve())!r}); gives(os.listdir, {os.getcwd()!r})"),
    Attack("a link out of its folder", "os.symlink('/etc/shadow', 'x'); reads('x'); os.link('/etc/shadow', 'y')"),
    Attack("other mounts", "gives(os.listdir, '/'); gives(os.listdir, '/..'); gives(os.listdir, '/jail')"),
    Attack("files by handle", "system(303, -100, b'/', bytes(64), bytes(8), 0); system(304, -100, bytes(64), 0)"),
    Attack(
        "the network",
        "import socket\ngives(socket.create_connection, ('127.0.0.1', 22), 0.1)\ngives(socket.socket)\n"
        "gives(socket.socket, socket.AF_NETLINK, socket.SOCK_RAW, 0)",
    ),
    Attack(
        "abstract sockets of neighbours",
        "import socket\ngives(lambda: socket.socket(socket.AF_UNIX).bind('\\0neighbour'))\n"
        "gives(lambda: socket.socket(socket.AF_UNIX).connect('\\0neighbour'))",
    ),
    Attack("descriptors of others", "for each in range(3, 1024): gives(os.fstat, each)"),
    Attack("a namespace by unshare", "for flag in (0x10000000, 0x20000, 0x20000000, 0x40000000): system(272, flag)"),
    Attack("a namespace by clone", "system(56, 0x10000000 | 17, 0, 0, 0, 0)", processes=8),
    Attack("a namespace by clone3", "system(435, (ctypes.c_uint64 * 8)(0x10000000), 64)", processes=8),
    Attack("namespaces of others", "system(308, 0, 0); system(434, 1, 0); system(438, 0, 0, 0)"),
    Attack("tracing", "for each in range(99): system(101, 0x4206, each, 0, 0)\nsystem(101, 0, 0, 0, 0)"),
    Attack(
        "memory of others",
        "for each in range(2, 99): system(310, each, 0, 0, 0, 0, 0); system(312, each, each, 0, 0, 0)",
    ),
    Attack(
        "signals to others",
        f"for each in {{*range(2, 99), {os.getpid()}, os.getppid()}} - {{0, os.getpid()}}:\n"
        "    gives(os.kill, each, 9)",
    ),
    Attack(
        "a daemon",
        "import time\nif not child():\n    os.setsid()\n    if not child():\n"
        "        for each in range(3): os.close(each)\n        time.sleep(1e6)\n    os._exit(0)",
        then="gives(os.kill, -1, 0)\ngives(os.kill, 2, 0)",
        processes=8,
    ),
    Attack(
        "what /proc tells",
        "if os.path.exists('/proc') and os.path.isdir('/proc/1'): escaped()\n"
        "for each in ('mem', 'environ', 'root', 'fd', 'maps', 'status'):\n"
        "    reads('/proc/1/' + each); reads('/proc/self/' + each)",
    ),
    Attack(
        "the interpreter's files",
        "import json\nfor each in (json.__file__, sys.executable, os.__file__): gives(open, each, 'ab')\n"
        "gives(os.mkdir, os.path.dirname(os.__file__) + '/planted')",
        then="import json\nif json.loads('1') != 1: escaped()",
    ),
    Attack(
        "the warm interpreter",
        "import builtins, json\njson.loads = lambda text: 7\nbuiltins.print = None\nsys.modules['math'] = None\n"
        "sys.path.insert(0, '/planted')\nos.environ['PLANTED'] = '1'",
        then="import json, math\nprint()\n"
        "if json.loads('1') != 1 or '/planted' in sys.path or 'PLANTED' in os.environ: escaped()",
    ),
    Attack(
        "traces of the one before",
        "kept = ['SECRET' + '-OF-A-NEIGHBOUR'] * 99",
        then="import gc\nword = 'SECRET' + '-OF-A-' + 'NEIGHBOUR'\n"
        "for each in gc.get_objects():\n    if isinstance(each, dict) and each.get('kept'): escaped()\n"
        "address = id(word) & ~0xFFFFF\n"
        "if ctypes.string_at(address, 1 << 19).count(word.encode()) > 2: escaped()",
    ),
    Attack(
        "variables of the outside",
        "if set(os.environ) - {'PATH', 'LANG', 'HOME', 'PWD', 'LC_CTYPE', 'LD_LIBRARY_PATH',\n"
        "    'PYTHONHASHSEED', 'OPENBLAS_NUM_THREADS'}: escaped(dict(os.environ))",
    ),
    Attack("standard output closed", "sys.stdout.close(); sys.stdout = None; os.close(1); os.close(2); os.close(0)"),
    Attack(
        "more privileges",
        "gives(os.setuid, 0); gives(os.setresuid, 0, 0, 0); gives(os.setgroups, [0]); system(126, 0, 0)\n"
        "if os.getuid() == 0: escaped()",
    ),
    Attack(
        "a program with the right to change users",
        "import shutil\nshutil.copy('/usr/bin/env', 'x'); os.chmod('x', 0o6755)\n"
        "if os.stat('x').st_uid == 0: escaped()\nos.execv('x', ['x', '-u', 'X', 'true'])",
    ),
    Attack(
        "devices",
        "import stat\ngives(os.mknod, 'disk', stat.S_IFBLK | 0o666, os.makedev(254, 0))\n"
        "reads('/dev/vda'); reads('/dev/mem'); reads('/dev/tty')",
    ),
    Attack(
        "mounts",
        "system(165, b'x', b'/box', b'tmpfs', 0, 0); system(166, b'/box', 2)\n"
        "system(161, b'/box'); system(155, b'.', b'.')\n"
        "for each in range(428, 434): system(each, 0, 0, 0, 0, 0)",
    ),
    Attack(
        "the kernel's larger interfaces",
        "for each in (321, 298, 323, 425, 426, 427, 206, 250, 248, 317, 135, 294, 300):\n"
        "    system(each, 0xffff, 0, 0, 0, 0)",
    ),
    Attack("another name for the machine", "system(170, b'mine', 4); system(171, b'mine', 4)"),
    Attack(
        "output that does not end with it",
        "import socket\na, b = socket.socketpair()\n"
        "for one in (a, b): gives(socket.send_fds, one, [b'x'], [1, 2, a.fileno(), b.fileno()])\nos._exit(0)",
        then="print(1)",
    ),
    Attack(
        "marks for the next program",
        "for each in ('null', 'zero', 'full', 'random', 'urandom'): gives(os.utime, '/dev/' + each)\n"
        "os.write(os.open('/dev/null', os.O_WRONLY), b'x')",
        (Status.OK,),
    ),
    Attack("the machine's disks", "system(162); system(306, 0)"),
    Attack(
        "files that others have open", "file = os.open('/usr/bin', 0)\nsystem(73, file, 6); system(72, file, 1026, 1)"
    ),
    Attack(
        "the interpreter's packages",
        "for each in (os.path.dirname(os.__file__) + '/site-packages', '/usr/lib/python3/dist-packages'):\n"
        "    gives(lambda: len(os.listdir(each)) - 1)",
    ),
    Attack(
        "the end of the one before",
        "os._exit(77)",
        (Status.ERROR,),
        then="frame = sys._getframe()\nwhile frame:\n    for each in [*frame.f_locals.values()]:\n"
        "        if each == 77 << 8 or 'rusage' in str(type(each)): escaped(each)\n"
        "        if type(each) is bytearray and any(each): escaped(each)\n"
        "    frame = frame.f_back",
    ),
    Attack(
        "calls of 32 bits",
        "import mmap\ncode = mmap.mmap(-1, 4096, prot=7)\ncode.write(bytes.fromhex('b814000000cd80c3'))\n"
        "gives(ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code))))",
        (Status.ERROR,),
    ),
    Attack("a crash", "ctypes.string_at(0)", (Status.ERROR,)),
    Attack(
        "recursion without end",
        "sys.setrecursionlimit(10 ** 9)\ndef f(x): return [f(x)]\nf(1)",
        (Status.ERROR, Status.MEMORY, Status.CPU),
    ),
    Attack("a program that does not compile", "(" * 100_000, (Status.ERROR, Status.MEMORY, Status.OUTPUT)),
)


def failures(sandbox: Sandbox, names: Collection[str] = ()) -> dict[str, str]:
    """Run attacks, by default all, in a jail of one worker; return what is wrong with each, empty if it failed."""
    chosen = [attack for attack in ATTACKS if not names or attack.name in names]
    return {attack.name: attack.fault(sandbox.run(attack.jobs())) for attack in chosen}
