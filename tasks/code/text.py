"""What is said in ``code``: programs read from messages, and what an agent is told of its tries."""

from __future__ import annotations

from collections.abc import Sequence

from vecenv.tasks.code.answers import cut
from vecenv.tasks.code.problems import Problem, Test
from vecenv.tasks.code.values import literal
from vecenv.tasks.code.verification import Verdict
from vecenv.text.program_messages import Said, program_said

NAMES = {
    **dict.fromkeys(("py", "python", "python3"), "python"),
    **dict.fromkeys(("js", "javascript", "node"), "javascript"),
    **dict.fromkeys(("sh", "bash", "shell", "zsh", "console"), "shell"),
    **dict.fromkeys(("sql", "sqlite", "sqlite3"), "sql"),
}
"""Languages by what stands behind a fence; what is none of these, such as nothing or ``text``, may be any."""
TOKEN = 4
"""Characters of a token, about."""


def read_program(message: str, language: str) -> Said:
    """Return the program of a message in a language; a block that is said to be in another one is passed over."""
    said = program_said(message, lambda named: NAMES.get(named, language) == language)
    return Said(fault=f"it has no {language} program between ``` fences") if said is None else said


def instructions(language: str, tries: int) -> str:
    """Return what an agent is told before its first message."""
    told = f"Write a {language} program that solves the problem. Put it between ``` fences: it is run on tests"
    if tries == 1:
        return f"{told}. What counts is how many hidden tests, other than those shown, it passes."
    return (
        f"{told}, and you are told of those that are shown. You may then write a better one. Put your last one between "
        "<final_code> and </final_code>. What counts is how many hidden tests, other than those shown, your last "
        "program passes."
    )


def opening(problem: Problem, tries: int, characters: int) -> str:
    """Return the first text of an episode."""
    limits, parts = problem.limits, [problem.prompt.strip(), ""]
    if problem.entry and problem.rungs != ["stdio"]:
        parts.append(f"The program defines {problem.entry}, which is called by itself: it reads nothing when imported.")
    parts.append(f"Limits of a run: {limits.cpu:g} s of processor time, {limits.memory >> 20:,} MB.")
    many = {kind: sum(test.shown == kind for test in problem.tests) for kind in (True, False)}
    parts.append(f"There are {many[True]} shown and {many[False]} hidden tests. {left(tries, characters)}")
    return "\n".join(parts)


def left(tries: int, characters: int) -> str:
    """Return what an agent has left."""
    times = "One try" if tries == 1 else f"{tries} tries"
    return f"{times} and {characters:,} characters (about {characters // TOKEN:,} tokens) are left."


def feedback(problem: Problem, verdicts: Sequence[Verdict], failed_run: str, longest: int) -> str:
    """Return what is told of the shown tests of a try, in about ``longest`` characters at most."""
    if failed_run:
        return f"Your program does not run: {cut(failed_run, longest)}."
    shown = [(test, verdict) for test, verdict in zip(problem.tests, verdicts, strict=True) if test.shown]
    passed = sum(bool(verdict.passed) for _, verdict in shown)
    lines, untold = [f"Your program runs, and passes {passed} of {len(shown)} shown tests."], 0
    room = longest
    for number, (test, verdict) in enumerate(shown, 1):
        if verdict.passed:
            continue
        told = f"Test {number} ({test.rung}) failed.\n{_details(problem, test, verdict, longest // 8)}"
        if len(told) > room:
            untold += 1
            continue
        room -= len(told)
        lines.append(told)
    return "\n".join([*lines, f"{untold} more failed."] if untold else lines)


def _details(problem: Problem, test: Test, verdict: Verdict, longest: int) -> str:
    if test.rung == "function":
        asked = f"{problem.entry}({', '.join(map(literal, test.args))})"
    else:
        asked = test.stdin if test.rung == "stdio" else test.code
    parts = {
        {"stdio": "input", "function": "call", "assertions": "test"}[test.rung]: asked,
        "expected": verdict.expected,
        "got": verdict.got,
        "error": verdict.error,
    }
    lines = []
    for name, text in parts.items():
        if text or (name in ("expected", "got") and test.rung == "stdio"):
            text = cut(text.rstrip("\n"), longest)
            lines.append(f"{name}:\n{text}" if "\n" in text else f"{name}: {text}")
    return "\n".join(lines)
