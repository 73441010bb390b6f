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
from pathlib import Path

from vecenv.sandbox.jail import bubblewrap, shown
from vecenv.sandbox.job import Job, Result, Status

EXPRESSIONS = (
    *(ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Call, ast.keyword, ast.Name, ast.Attribute),
    *(ast.Constant, ast.JoinedStr, ast.FormattedValue, ast.Subscript, ast.Slice, ast.List, ast.Tuple, ast.Dict),
    *(ast.ListComp, ast.DictComp, ast.comprehension, ast.Lambda, ast.arguments, ast.arg),
    *(ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context),
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
PART = 4
"""The part of the limits that a program may use here."""
LONGEST = 10_000
"""Characters of a program; the syntax of a longer one is not for this process to take its time on."""
SHOWN = (b"...", b"<function", b"<module")
"""Marks of what is printed in another way: lists that hold themselves, functions, modules."""
DEPTH = 900
"""Calls inside each other; the other interpreter allows a few more."""


def is_simple(source: str) -> bool:
    """Whether a program is written in what both interpreters run alike."""
    if len(source) > LONGEST:
        return False
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    nodes = list(ast.walk(tree))
    if not all(isinstance(node, (*EXPRESSIONS, *STATEMENTS)) for node in nodes):
        return False
    inside = {id(part) for node in nodes if isinstance(node, ast.FunctionDef) for part in ast.walk(node)}
    if any(isinstance(node, ast.Return) and id(node) not in inside for node in nodes):
        return False
    own = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    own |= {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    own |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    known = own | FUNCTIONS | {"math"}
    return not own & (FUNCTIONS | {"math"}) and all(_known(node, known) for node in nodes)


def _known(node: ast.AST, names: set[str]) -> bool:
    match node:
        case ast.Name():
            return node.id in names
        case ast.Attribute(value=ast.Name(id="math")):
            return node.attr in MATH
        case ast.Attribute():
            return node.attr in METHODS and isinstance(node.ctx, ast.Load)
        case ast.keyword():
            return node.arg in KEYWORDS
        case ast.FunctionDef():
            return not node.decorator_list
        case ast.Import():
            return all(each.name == "math" and each.asname is None for each in node.names)
        case ast.Constant():
            # Text with half of a surrogate pair has no UTF-8.
            text = isinstance(node.value, str) and (node.value.isascii() or node.value.isprintable())
            return text or isinstance(node.value, int | None)
        case ast.BinOp(op=ast.Pow()):
            # Not below zero, which makes it a float.
            return isinstance(node.right, ast.Constant)
        case ast.MatMult() | ast.Div() | ast.AugAssign(op=ast.Pow()):
            return False
    return True


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

    def close(self) -> None:
        """End all interpreters."""
        self._pool.__exit__(None, None, None)
        self._folder.cleanup()
