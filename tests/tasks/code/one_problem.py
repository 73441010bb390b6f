"""A problem with solutions, and a verifier of programs and tests that are written here, without a sandbox."""

import json

import torch

from vecenv.tasks.code import scene
from vecenv.tasks.code.problems import Test
from vecenv.tasks.code.verification import Verdict

RIGHT, NEGATIVE, ZERO = (f"def double(n):\n    return {body}" for body in ("2 * n", "2 * abs(n)", "2 * n or 1"))
WRONG = [(NEGATIVE, "function"), (ZERO, "assertions"), ("import nothing", "runs")]
FUNCTION = [{"rung": "function", "args": [n], "returns": 2 * n, "shown": n == 3} for n in (3, 4, -5)]
ASSERTIONS = [{"rung": "assertions", "code": f"assert double({n}) == {2 * n}", "shown": n == 1} for n in (1, 0)]
PROBLEM = {
    "name": "double",
    "language": "python",
    "prompt": "Define double(n).",
    "entry": "double",
    "tests": FUNCTION + ASSERTIONS,
    "solutions": {"right": [RIGHT], "wrong": [{"code": code, "caught": caught} for code, caught in WRONG]},
}


class InProcess:
    """A verifier of these few programs without a sandbox; it fails where ``fails``."""

    fails = False

    async def ladder(self, problem, program):
        ran = self.passes(problem.entry, program, Test("assertions"))
        verdicts = [Verdict(test.rung, ran and self.passes(problem.entry, program, test)) for test in problem.tests]
        return Verdict("runs", ran), verdicts

    async def matrix(self, problem, programs, tests):
        rows = [[self.passes(problem.entry, program, test) for test in tests] for program in programs]
        passed = torch.tensor(rows)
        return passed, torch.full_like(passed, not self.fails)

    def passes(self, entry, program, test):
        space = {}
        try:
            exec(program, space)
            if test.rung == "function":
                return space[entry](*test.args) == test.returns
            exec(test.code, {entry: space.get(entry)})
        except Exception:
            return False
        return True


def write_problem(path, monkeypatch):
    """Write a file with the problem, let worlds verify in process, and return their settings."""
    verifier = InProcess()
    monkeypatch.setattr(scene, "shared_verifier", lambda workers, without: verifier)
    path.write_text(json.dumps(PROBLEM))
    return {"problems": str(path), "tries": 2}
