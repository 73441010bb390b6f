"""What runs in the jail: a program's function called on given values, and a test that is given its answers alone.

The text of this module, with `answer_calls()` or `check()` below it, is the program of a job: it uses the standard
library alone. What stands in its process may be hostile; who reads its output believes nothing but values.
"""

from __future__ import annotations

import ast
import builtins
import json
import os
import sys
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from types import FunctionType, ModuleType, TracebackType
from typing import Any

MOST_QUESTIONS = 1000
"""Questions about unknown values that are answered, after which loops that wait for another answer end."""
MOST_CALLS = 500
"""Different calls that a test may make."""
WIDE = 2**63
"""From here on integers are written in hexadecimal digits, which Python reads and writes in linear time."""
ENDS_OF_LOOPS = (StopIteration, StopAsyncIteration)
PROGRAM, TEST = "main.py", "test.py"
STATEMENTS = (
    *(ast.Assert, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr),
    *(ast.For, ast.While, ast.If, ast.With, ast.Try, ast.Match),
)


def encoded(value: Any) -> Any:  # noqa: ANN401
    """Return a plain value in JSON, see `vecenv.tasks.code.values`; TypeError of any other one.

    An instance of a subclass is another one: it may be anything.
    """
    kind = type(value)
    if value is None or kind in (bool, str):
        return value
    if kind is int:
        return value if -WIDE < value < WIDE else {"int": hex(value)}
    if kind is float:
        return value if value - value == 0 else {"float": repr(value)}
    if kind is bytes:
        return {"bytes": value.hex()}
    if kind is list:
        return [encoded(item) for item in value]
    if kind is tuple:
        return {"tuple": [encoded(item) for item in value]}
    if kind in (set, frozenset):
        return {"set": sorted((encoded(item) for item in value), key=json.dumps)}
    if kind in (dict, defaultdict, Counter, OrderedDict):
        return {"dict": [[encoded(key), encoded(item)] for key, item in value.items()]}
    raise TypeError(f"{kind.__name__} is no plain value")


def decoded(value: Any, hashable: bool = False) -> Any:  # noqa: ANN401
    """Return the value that a JSON value stands for; sets that must be hashable are frozen."""
    if type(value) is list:
        return [decoded(item) for item in value]
    if type(value) is not dict:
        return value
    ((tag, inner),) = value.items()
    if tag == "tuple":
        return tuple(decoded(item, hashable) for item in inner)
    if tag == "set":
        return (frozenset if hashable else set)(decoded(item, True) for item in inner)
    if tag == "dict":
        return {decoded(key, True): decoded(item) for key, item in inner}
    return {"int": lambda: int(inner, 16), "float": lambda: float(inner), "bytes": lambda: bytes.fromhex(inner)}[tag]()


def _channel() -> Callable[[dict[str, Any]], None]:
    """Return what writes a line of JSON to what was standard output; what is printed from now on is dropped."""
    channel, write, dumps = os.dup(1), os.write, json.dumps
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)

    def tell(told: dict[str, Any]) -> None:
        line = dumps(told, allow_nan=False).encode() + b"\n"
        while line:
            line = line[write(channel, line) :]

    return tell


def _told(error: BaseException, file: str) -> str:
    """Return type and text of an exception, and the last line of the file that it came through."""
    line, step = 0, error.__traceback__
    while isinstance(step, TracebackType):
        if step.tb_frame.f_code.co_filename == file:
            line = step.tb_lineno
        step = step.tb_next
    text = f"{type(error).__name__}: {error}"[:400] if str(error) else type(error).__name__
    return f"{text} (line {line})" if line else text


def answer_calls() -> None:
    """Call a function of the program ``solution.py``; standard input has its name, and the calls in JSON."""
    asked = json.loads(sys.stdin.read())
    tell = _channel()
    module = sys.modules["solution"] = ModuleType("solution")
    try:
        with open("solution.py", encoding="utf-8") as file:
            exec(compile(file.read(), PROGRAM, "exec", dont_inherit=True), vars(module))
        function = vars(module).get(asked["entry"])
        if not callable(function):
            raise NameError(f"there is no function {asked['entry']!r}")
    except BaseException as error:
        tell({"loaded": _told(error, PROGRAM)})
        return
    tell({"loaded": ""})
    for number, (args, named) in enumerate(asked["calls"]):
        given = decoded(args)
        try:
            answer = {"n": number, "value": encoded(function(*given, **{name: decoded(one) for name, one in named}))}
            after = encoded(given)
            if after != args:
                answer["after"] = after
            json.dumps(answer)
        except BaseException as error:
            kinds = [kind.__name__ for kind in type(error).__mro__]
            # Of one text its text: that of a KeyError is in quotes, and would get further ones when it is raised again.
            text = error.args[0] if len(error.args) == 1 and type(error.args[0]) is str else str(error)
            answer = {"n": number, "raised": kinds, "message": text[:400], "told": _told(error, PROGRAM)}
        tell(answer)


class Ended(BaseException):
    """The program's process ended in a call, so that there is no answer; no ``except Exception`` of a test hides it."""


class Unknown:
    """What a call returns whose answer is not known yet: it goes along with anything, so that more calls are seen."""

    asked = 0

    def _self(self, *args: Any, **named: Any) -> Any:  # noqa: ANN401
        return self

    def _yes(self, *args: Any) -> bool:  # noqa: ANN401
        Unknown.asked += 1
        if Unknown.asked > MOST_QUESTIONS:
            raise Ended("an answer is not known")
        return True

    __getattr__ = __call__ = __getitem__ = __enter__ = __neg__ = __pos__ = __abs__ = __invert__ = __round__ = _self
    __bool__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __contains__ = _yes
    for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift"):
        locals()[f"__{_name}__"] = locals()[f"__r{_name}__"] = _self

    def __hash__(self) -> int:
        return 0

    def __iter__(self) -> Any:  # noqa: ANN401
        return iter(())

    def __len__(self) -> int:
        return 0

    __int__ = __index__ = __len__

    def __float__(self) -> float:
        return 0.0


def _replayed(answer: dict[str, Any], args: tuple[Any, ...]) -> Any:  # noqa: ANN401
    """Do as the program did in a call: change its arguments, return or raise."""
    if "died" in answer:
        raise Ended(answer["died"])
    if "raised" in answer:
        for kind in (getattr(builtins, name, None) for name in answer["raised"]):
            # What ends an interpreter does not end the test's, and what ends a loop no loop of the test.
            if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, ENDS_OF_LOOPS):
                try:
                    error = kind(answer["message"])
                except TypeError:
                    continue
                raise error
        raise Ended(answer["told"])
    for own, after in zip(args, decoded(answer.get("after", [])), strict=False):
        _changed(own, after)
    return decoded(answer["value"])


def _changed(own: Any, after: Any) -> Any:  # noqa: ANN401
    """Change an argument in place, with all in it, to what it is after a call; return it, or what stands for it now."""
    if isinstance(own, list) and isinstance(after, list):
        own[:] = [*map(_changed, own, after), *after[len(own) :]]
    elif isinstance(own, dict) and isinstance(after, dict):
        items = {key: _changed(own[key], item) if key in own else item for key, item in after.items()}
        own.clear()
        own.update(items)
    elif isinstance(own, set) and isinstance(after, set):
        own.clear()
        own.update(after)
    elif isinstance(own, tuple) and isinstance(after, tuple):
        return tuple([*map(_changed, own, after), *after[len(own) :]])
    else:
        return after
    return own


class _GoOn(ast.NodeTransformer):
    """Lets each statement of a test be followed by the next one, also in loops, where ``__go_on__`` does not raise."""

    def visit(self, node: ast.AST) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node, STATEMENTS):
            return node
        (guarded,) = ast.parse("try: pass\nexcept BaseException: __go_on__()").body
        assert isinstance(guarded, ast.Try)
        for part in ast.walk(guarded):
            ast.copy_location(part, node)
        guarded.body = [node]
        return guarded


def check() -> None:
    """Run a test with a stand-in of the function that knows some answers; tell the calls that are not known.

    Standard input has the function's name, the test and the answers to calls. Once a call was unknown, a statement that
    fails is followed by the next one, since it may not fail when the answer is known: so all calls are seen at once
    that do not depend on answers.
    """
    asked = json.loads(sys.stdin.read())
    tell = _channel()
    known = {json.dumps(call): answer for call, answer in asked["answers"]}
    new: set[str] = set()
    failure = ""

    def function(*args: Any, **named: Any) -> Any:  # noqa: ANN401
        call = json.dumps([encoded(list(args)), [[name, encoded(named[name])] for name in sorted(named)]])
        if call in known:
            return _replayed(known[call], args)
        if call not in new:
            if len(new) + len(known) >= MOST_CALLS:
                tell({"refused": f"it makes more than {MOST_CALLS} different calls"})
                os._exit(0)
            new.add(call)
            tell({"call": json.loads(call)})
        return Unknown()

    def go_on() -> None:
        if not new:
            raise

    def run(part: Callable[[], object]) -> None:
        nonlocal failure
        try:
            part()
        except BaseException as error:
            failure = failure or _told(error, TEST)

    space: dict[str, Any] = {"__name__": "test", "__go_on__": go_on, asked["entry"]: function}
    sys.modules["solution"] = ModuleType("solution")
    setattr(sys.modules["solution"], asked["entry"], function)

    def whole() -> None:
        tree: Any = _GoOn().visit(ast.parse(asked["code"], TEST))
        exec(compile(tree, TEST, "exec", dont_inherit=True), space)

    run(whole)
    for name, each in list(space.items()):
        if name.startswith("test") and isinstance(each, FunctionType) and (new or not failure):
            run(each)
    tell({"end": failure})
