"""Layers that confine a process for good: namespaces, a user that owns nothing, limits, Landlock, seccomp.

By system calls, without a library. What is done here is done by the process itself before it runs what it was given,
and cannot be undone. Sources: landlock(7), seccomp(2), user_namespaces(7), getrlimit(2).
"""

import ctypes
import os
import platform
import resource
import struct
from itertools import product

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWPID = 0x00020000, 0x08000000, 0x20000000
NEW_NAMESPACE = 0x7E020000
"""Flags of clone that ask for any new namespace."""
READ_ONLY, NOSUID, NODEV, NOEXEC, REMOUNT, BIND = 1, 2, 4, 8, 32, 4096
NO_NEW_PRIVS, SET_SECCOMP, CLEAR_AMBIENT = 38, 22, (47, 4)
CAPSET, CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 126, 444, 445, 446

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, TRUNCATE, IOCTL_DEV = (1 << bit for bit in (0, 1, 2, 3, 14, 15))
RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""Landlock's rights over files that each version of its interface knows, as a number of bits."""
DEVICES = ("null", "zero", "full", "random", "urandom")

DENIED = {
    # Sockets, but not pairs of them; messages, since open files in them outlive a job.
    **dict(socket=41, connect=42, accept=43, bind=49, listen=50, accept4=288, sendmsg=46, sendmmsg=307),
    # Memory that outlives a job, or that no limit counts.
    **dict(shmget=29, shmat=30, shmctl=31, semget=64, semop=65, semctl=66, shmdt=67, msgget=68, msgsnd=69, msgrcv=70),
    **dict(msgctl=71, semtimedop=220, mq_open=240, mq_unlink=241, memfd_create=319),
    **dict(add_key=248, request_key=249, keyctl=250),
    # Other processes.
    **dict(ptrace=101, process_vm_readv=310, process_vm_writev=311, kcmp=312, migrate_pages=256, move_pages=279),
    # Namespaces and mounts.
    **dict(unshare=272, setns=308, mount=165, umount2=166, pivot_root=155, chroot=161),
    **dict(name_to_handle_at=303, open_by_handle_at=304),
    # The kernel's larger interfaces, in which faults have been found.
    **dict(bpf=321, perf_event_open=298, userfaultfd=323, seccomp=317, personality=135, modify_ldt=154, uselib=134),
    **dict(io_setup=206, io_destroy=207, io_getevents=208, io_submit=209, io_cancel=210, quotactl=179, sysfs=139),
    **dict(inotify_init=253, inotify_add_watch=254, inotify_init1=294, fanotify_init=300, fanotify_mark=301),
    **dict(mbind=237, set_mempolicy=238, lookup_dcookie=212, vmsplice=278),
    # The machine, its disks, and its files, which others have open too.
    **dict(sync=162, syncfs=306, flock=73),
    **dict(syslog=103, acct=163, swapon=167, swapoff=168, reboot=169, sethostname=170, setdomainname=171, iopl=172),
    **dict(ioperm=173, init_module=175, delete_module=176, finit_module=313, kexec_load=246, kexec_file_load=320),
    **dict(settimeofday=164, adjtimex=159, clock_settime=227, clock_adjtime=305, vhangup=153),
}
"""System calls of x86-64 that fail with EPERM."""
FIRST_NEW, NEWER_ALLOWED = 424, (436, 437, 439, 441, 449)
"""Calls from 424 on fail with ENOSYS (io_uring, the new mounts, pidfds, clone3, Landlock and all that is to come), but
close_range, openat2, faccessat2, epoll_pwait2 and futex_waitv."""
CLONE, FORK, VFORK = 56, 57, 58
MMAP, FCNTL = 9, 72
SHARED, NOTIFY = 1, 1026
X86_64 = 0xC000003E
EPERM, EAGAIN, EINVAL, ENOSYS = 1, 11, 22, 38
MNT_DETACH = 2
CAPABILITIES = struct.pack("Ii", 0x20080522, 0)
NEEDLESS = {"CORE": 0, "MEMLOCK": 0, "MSGQUEUE": 0, "RTPRIO": 0, "SIGPENDING": 128}
"""Limits of what nothing needs."""
HARD = {
    name.removeprefix("RLIMIT_"): (getattr(resource, name), resource.getrlimit(getattr(resource, name))[1])
    for name in dir(resource)
    if name.startswith("RLIMIT_")
}
"""Limits by name: their kinds, and how high they can be set."""

_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *args: object) -> int:
    value = getattr(_libc, name)(*args)
    if value < 0:
        raise OSError(ctypes.get_errno(), f"{name}{args[:1]}: {os.strerror(ctypes.get_errno())}")
    return value


def _system_call(number: int, *args: object) -> int:
    return _call("syscall", ctypes.c_long(number), *args)


def landlock_version() -> int:
    """Version of the kernel's Landlock; 0 without."""
    try:
        return _system_call(CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint(1))
    except OSError:
        return 0


def has_seccomp() -> bool:
    """Whether the kernel takes filters and there is one for this machine."""
    # An invalid address is refused as such (EFAULT) where filters are known.
    return platform.machine() == "x86_64" and _libc.prctl(SET_SECCOMP, 2, None) < 0 and ctypes.get_errno() == 14


def wait(child: int, end: bytearray) -> None:
    """Wait until a child has ended; fill `end` from byte 4 with its wait status and from byte 8 with its rusage."""
    place = (ctypes.c_char * len(end)).from_buffer(end)
    _call("wait4", child, ctypes.byref(place, 4), 0, ctypes.byref(place, 8))


def new_pid_namespace(own: int) -> None:
    """Let the next child be the first process of a new namespace; `own` is a pidfd of the caller."""
    # Of namespaces for children there is one at a time: back to the caller's own first.
    _call("setns", own, CLONE_NEWPID)
    _call("unshare", CLONE_NEWPID)


def mount_folder(path: str, size: int, user: int) -> None:
    """Mount an empty file system in memory of `size` bytes, for this process and those of its namespace."""
    options = f"size={size},nr_inodes=1024,mode=0700,uid={user},gid={user}"
    _call("mount", b"box", path.encode(), b"tmpfs", NOSUID | NODEV, options.encode())


def unmount_folder(path: str) -> None:
    """Take away what `mount_folder` mounted, if it did."""
    if _libc.umount2(path.encode(), MNT_DETACH) and ctypes.get_errno() != EINVAL:
        raise OSError(ctypes.get_errno(), f"{path}: {os.strerror(ctypes.get_errno())}")


def new_ipc_namespace() -> None:
    """Leave the queues and the shared memory of System V to others."""
    _call("unshare", CLONE_NEWIPC)


def hide(path: str) -> None:
    """Cover a folder with an empty one, for this process and its children."""
    _call("unshare", CLONE_NEWNS)
    _call("mount", b"none", path.encode(), b"tmpfs", READ_ONLY | NOSUID | NODEV, b"size=4k,nr_inodes=1")


def keep(path: str) -> None:
    """Let what is mounted at a path keep its times and its mode; a device can be written all the same."""
    flags = os.statvfs(path).f_flag & (NOSUID | NODEV | NOEXEC)
    _call("mount", None, path.encode(), None, REMOUNT | BIND | READ_ONLY | flags, None)


def limit(limits: dict[str, int]) -> None:
    """Set limits of the process, such as ``{"CPU": 2}``; what was lower stays."""
    for name, value in limits.items():
        kind, hard = HARD[name]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))


def give_up(user: int | None) -> None:
    """Give up what no job may have and making jails does not need, for this process and its children."""
    limit(NEEDLESS)
    if user is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
    _call("prctl", *CLEAR_AMBIENT, 0, 0, 0)
    _call("prctl", NO_NEW_PRIVS, 1, 0, 0, 0)


def become_nobody(user: int | None) -> None:
    """Become a user that owns nothing, unless None, and lose every privilege for good, after `give_up`."""
    if user is not None:
        os.setresuid(user, user, user)
    _system_call(CAPSET, CAPABILITIES, bytes(24))


def landlock_rules(readable: list[str], writable: str) -> int:
    """Return a descriptor of rules: files below some folders may be read and run, those below one changed; no ports.

    What is mounted below a folder is below it, but a folder that is mounted upon has no rule of its own.
    """
    version = landlock_version()
    every = (1 << RIGHTS[min(version, 5)]) - 1
    files = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
    # Ports of TCP since version 4; abstract sockets and signals to others since 6.
    attributes = [every, 3, 3][: 1 if version < 4 else 2 if version < 6 else 3]
    packed = struct.pack(f"{len(attributes)}Q", *attributes)
    rules = _system_call(CREATE_RULESET, packed, ctypes.c_size_t(len(packed)), ctypes.c_uint(0))
    reading = EXECUTE | READ_FILE | READ_DIR
    devices = [(f"/dev/{name}", READ_FILE | WRITE_FILE) for name in DEVICES]
    for path, rights in [(writable, every), *((each, reading) for each in readable), *devices]:
        try:
            place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        rights &= every if os.path.isdir(path) else every & files
        _system_call(ADD_RULE, rules, 1, struct.pack("=Qi", rights, place), ctypes.c_uint(0))
        os.close(place)
    return rules


def landlock(rules: int) -> None:
    """Keep to rules, which allow nothing that they do not name."""
    _system_call(RESTRICT_SELF, rules, ctypes.c_uint(0))


def _instruction(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("=HBBI", code, yes, no, value)


def _filter(processes: bool, shared: bool) -> bytes:
    """Return the filter, as a program of classic BPF, with or without further processes and shared memory."""
    load, equal, at_least, any_bit, end = 0x20, 0x15, 0x35, 0x45, 0x06
    allow, fail, kill = 0x7FFF0000, 0x00050000, 0x80000000

    def when_given(number: int, argument: int, test: int, value: int) -> list[bytes]:
        given = [
            _instruction(load, 16 + 8 * argument),
            _instruction(test, value, 0, 1),
            _instruction(end, fail | EPERM),
        ]
        return [_instruction(equal, number, 0, 4), *given, _instruction(load, 0)]

    program = [_instruction(load, 4), _instruction(equal, X86_64, 1, 0), _instruction(end, kill), _instruction(load, 0)]
    # Signals about what others do in a folder.
    program += when_given(FCNTL, 1, equal, NOTIFY)
    if not shared:
        program += when_given(MMAP, 3, any_bit, SHARED)
    if processes:
        program += when_given(CLONE, 0, any_bit, NEW_NAMESPACE)
    verdicts = {number: fail | EPERM for number in DENIED.values()}
    if not processes:
        verdicts |= dict.fromkeys((CLONE, FORK, VFORK), fail | EAGAIN)
    verdicts |= dict.fromkeys(NEWER_ALLOWED, allow)
    ranges = [(0, allow)]
    for number in range(1, max(NEWER_ALLOWED) + 2):
        verdict = verdicts.get(number, allow if number < FIRST_NEW else fail | ENOSYS)
        if verdict != ranges[-1][1]:
            ranges.append((number, verdict))
    # The kernel tries every call when it takes a filter: a search by halves is cheaper than one after another.
    ends = sorted({verdict for _, verdict in ranges})

    def search(low: int, high: int) -> list[tuple[int, int, int, int, int]]:
        """Return comparisons that find a number in ranges: with what, how many follow below and above, verdicts."""
        if high - low == 1:
            return []
        middle = (low + high) // 2
        below, above = search(low, middle), search(middle, high)
        return [(ranges[middle][0], len(below), len(above), ranges[low][1], ranges[middle][1]), *below, *above]

    nodes = search(0, len(ranges))
    for left, (number, below, above, lower, upper) in zip(reversed(range(len(nodes))), nodes, strict=True):
        yes = below if above else left + ends.index(upper)
        no = 0 if below else left + ends.index(lower)
        program.append(_instruction(at_least, number, yes, no))
    return b"".join([*program, *(_instruction(end, verdict) for verdict in ends)])


_FILTERS = {each: ctypes.create_string_buffer(_filter(*each)) for each in product((False, True), repeat=2)}
# A struct sock_fprog: a number of instructions and their address.
_PROGRAMS = {each: struct.pack("@HP", len(words) // 8, ctypes.addressof(words)) for each, words in _FILTERS.items()}


def seccomp(processes: bool, shared: bool) -> None:
    """Deny `DENIED` and newer calls, and unless they are allowed, further processes and threads, and shared memory."""
    _call("prctl", SET_SECCOMP, 2, _PROGRAMS[processes, shared])
