"""The engine for simple Python: an interpreter of a subset, in a jail without a Python (`pydantic-monty`).

A job's result does not depend on the engine. So a program is given to this one only if it is written in what is known
to be equal in both (`is_simple`), and what this one returns is used only if the program ran to its end within a part
of its limits. All else is for the jail to decide, as if nothing had happened.
"""

from __future__ import annotations

import ast
import importlib.util
import shlex
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vecenv.sandbox.jail import bubblewrap, shown
from vecenv.sandbox.job import Job, Limits, Result, Status

EXPRESSIONS = (
    *(ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Call, ast.keyword, ast.Name, ast.Attribute),
    *(ast.Constant, ast.JoinedStr, ast.FormattedValue, ast.Subscript, ast.Slice, ast.List, ast.Tuple, ast.Dict),
    *(ast.ListComp, ast.DictComp, ast.comprehension, ast.Lambda, ast.arguments, ast.arg),
)
STATEMENTS = (
    *(ast.Module, ast.Expr, ast.Assign, ast.AugAssign, ast.For, ast.While, ast.If, ast.Break, ast.Continue, ast.Pass),
    *(ast.FunctionDef, ast.Return, ast.Assert, ast.Import, ast.alias),
)
"""No sets, whose order differs, and no `try`, which hides what a subset lacks. No floats either, of which some
with 17 digits are printed with another last one, and no iterators, which are lists in the other interpreter."""
FUNCTIONS = frozenset(("print", "len", "range", "sum", "min", "max", "abs", "sorted", "round", "divmod", "any", "all"))
FUNCTIONS |= {"int", "str", "bool", "list", "tuple", "dict", "ord", "chr"}
METHODS = frozenset(
    ("append", "pop", "extend", "insert", "index", "count", "sort", "reverse", "keys", "values", "items", "get", "find")
)
METHODS |= {"split", "join", "strip", "lower", "upper", "replace", "startswith", "endswith", "isdigit", "isalpha"}
MATH = {"gcd", "isqrt"}
KEYWORDS = {"sep", "end", "key", "reverse", "default", "start", "strict"}
FIELDS = {
    kind: tuple(
        (name, name in ("test", "ifs"))
        for name in kind._fields
        if name not in ("op", "ops", "ctx", "id", "attr", "kind", "type_comment", "type_ignores", "conversion")
    )
    for kind in (*EXPRESSIONS, *STATEMENTS)
}
"""What is below a node of a program, and whether it is only asked whether it is true."""
NO_NUMBERS = (ast.MatMult, ast.Div)
TRUTHS = {"bool", "any", "all", "startswith", "endswith", "isdigit", "isalpha"}
PART = 4
"""The part of the limits that a program may use here."""
LONGEST = 10_000
"""Characters of a program; the syntax of a longer one is not for this process to take its time on."""
SHOWN = (b"...", b"<function", b"<module")
"""Marks of what is printed in another way: lists that hold themselves, functions, modules."""
DEPTH = 900
"""Calls inside each other; the other interpreter allows a few more."""


class ProgramFailed(Exception):
    """A program raised, or passed a limit, in a session: its own doing."""


class SandboxFailed(Exception):
    """An interpreter failed, not the program that it ran: a sample to mask and to count."""


def is_simple(source: str) -> bool:
    """Whether a program is written in what both interpreters run alike."""
    if len(source) > LONGEST:
        return False
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    own: set[str] = set()
    names: set[str] = set()
    truths = keyed = False
    # Nodes with whether they are in a function, and whether they are only asked whether they are true.
    left: list[tuple[Any, bool, bool]] = [(tree, False, False)]
    while left:
        node, within, asked = left.pop()
        kind = type(node)
        if kind not in FIELDS or (kind in CHECKS and not CHECKS[kind](node)) or (kind is ast.Return and not within):
            return False
        if kind is ast.Name:
            (names if type(node.ctx) is ast.Load else own).add(node.id)
        elif kind is ast.arg:
            own.add(node.arg)
        elif kind is ast.FunctionDef:
            own.add(node.name)
            within = True
        truths |= not asked and _is_truth(node)
        keyed |= kind is ast.Dict or kind is ast.DictComp
        asked = (asked and kind in (ast.BoolOp, ast.IfExp)) or (kind is ast.UnaryOp and type(node.op) is ast.Not)
        asked |= kind is ast.keyword and node.arg in ("reverse", "strict")
        for field, test in FIELDS[kind]:
            below = getattr(node, field, None)
            if type(below) is list:
                left += [(each, within, asked or test) for each in below if each is not None]
            elif isinstance(below, ast.AST):
                left.append((below, within, asked or test))
    # A key that is written anew is another in the other interpreter, where 1 and True are one key.
    one_key = truths and (keyed or "dict" in names)
    return not one_key and not own & (FUNCTIONS | {"math"}) and names <= own | FUNCTIONS | {"math"}


def _is_truth(node: ast.AST) -> bool:
    """Whether the value of a node may be True or False and not a number."""
    match node:
        case ast.Compare() | ast.UnaryOp(op=ast.Not()) | ast.Constant(value=bool()):
            return True
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name in TRUTHS
    return False


def _is_known_text(node: ast.Constant) -> bool:
    # Text with half of a surrogate pair has no UTF-8.
    text = isinstance(node.value, str) and (node.value.isascii() or node.value.isprintable())
    return text or isinstance(node.value, int | None)


CHECKS: dict[type[ast.AST], Callable[[Any], bool]] = {
    ast.Attribute: lambda node: (
        node.attr in (MATH if type(node.value) is ast.Name and node.value.id == "math" else METHODS)
        and type(node.ctx) is ast.Load
    ),
    ast.keyword: lambda node: node.arg in KEYWORDS,
    ast.FunctionDef: lambda node: not node.decorator_list,
    ast.Import: lambda node: all(each.name == "math" and each.asname is None for each in node.names),
    ast.Constant: _is_known_text,
    # Not below zero, which makes it a float.
    ast.BinOp: lambda node: (
        type(node.op) not in NO_NUMBERS and (type(node.op) is not ast.Pow or type(node.right) is ast.Constant)
    ),
    ast.AugAssign: lambda node: type(node.op) not in (*NO_NUMBERS, ast.Pow),
}
"""What is asked of some kinds of nodes."""


class Monty:
    """A pool of interpreters of the subset, each in a jail and reset for every job.

    Args:
        workers: jobs that run at a time.
    """

    name = "monty"

    @staticmethod
    def installed() -> bool:
        """Whether the extra ``vecenv[sandbox]`` is here."""
        return importlib.util.find_spec("pydantic_monty") is not None

    def __init__(self, workers: int) -> None:
        import pydantic_monty
        from pydantic_monty._binary import find_monty_binary

        self._failure = (pydantic_monty.MontyError, TimeoutError, OSError)
        self._collect, self._limits = pydantic_monty.CollectStreams, pydantic_monty.ResourceLimits
        self._folder = tempfile.TemporaryDirectory(prefix="vecenv-monty-")
        # Whichever thread begins them, they end with the pool.
        begin = [word for word in bubblewrap() if word != "--die-with-parent"]
        words = [*begin, *shown(Path(find_monty_binary()), Path("/monty")), "--cap-drop", "ALL"]
        start = Path(self._folder.name, "monty")
        start.write_text(f'#!/bin/sh\nexec {shlex.join([*words, "--remount-ro", "/", "/monty"])} "$@"\n')
        start.chmod(stat.S_IRWXU)
        self._pool = pydantic_monty.Monty(binary_path=start, min_processes=workers, max_processes=workers)
        self._pool.__enter__()

    def run(self, job: Job) -> Result | None:
        """Run a job that has no fault; None if it is not for this engine, or did not come to a good end in it."""
        source = job.source.decode() if isinstance(job.source, bytes) else job.source
        if job.language != "python" or job.stdin or job.files or not is_simple(source):
            return None
        limits = self._limits(
            max_feed_duration_secs=job.limits.cpu / PART,
            max_memory=job.limits.memory // PART,
            max_recursion_depth=DEPTH,
        )
        printed = self._collect(job.limits.output)
        began = time.monotonic()
        try:
            with self._pool.checkout(limits=limits) as session:
                session.feed_run(source, print_callback=printed)
        except self._failure:
            return None
        wall = time.monotonic() - began
        stdout = "".join(text for _, text in printed.output).encode()
        if any(mark in stdout for mark in SHOWN):
            return None
        return Result(Status.OK, 0, stdout, b"", wall, wall, self.name)

    @contextmanager
    def session(self, limits: Limits) -> Iterator[Callable[..., Any]]:
        """Open an interpreter of its own, which keeps names; yield what runs a text there and returns its last value.

        Further arguments are bound to names first. Each run may take ``limits.wall`` seconds of the clock, since this
        interpreter does not tell processor time. Texts may be any that it knows, not those of `is_simple` alone.

        Raises:
            ProgramFailed: by a text that fails, or passes a limit.
            SandboxFailed: by a failure of the interpreter, at any time.
        """
        import pydantic_monty

        bounds = self._limits(max_feed_duration_secs=limits.wall, max_memory=limits.memory, max_recursion_depth=DEPTH)
        try:
            with self._pool.checkout(limits=bounds) as session:

                def run(source: str, **inputs: Any) -> Any:  # noqa: ANN401
                    try:
                        return session.feed_run(source, inputs=inputs, print_callback=self._collect(limits.output))
                    except (pydantic_monty.MontyRuntimeError, pydantic_monty.MontySyntaxError) as error:
                        raise ProgramFailed(str(error)) from None

                yield run
        except self._failure as error:
            raise SandboxFailed(f"{type(error).__name__}: {error}") from error

    def close(self) -> None:
        """End all interpreters."""
        self._pool.__exit__(None, None, None)
        self._folder.cleanup()
