"""A small problem of all rungs, with solutions that each rung rejects."""

import json

RIGHT = """
import sys

def median(xs):
    if not xs:
        raise ValueError("there is no median of nothing")
    return sorted(xs)[len(xs) // 2]

if __name__ == "__main__":
    print(median([int(word) for word in sys.stdin.read().split()]))
"""
SORTS_IN_PLACE = RIGHT.replace("return sorted(xs)", "xs.sort()\n    return xs")
LINE = {
    "name": "median",
    "language": "python",
    "version": "3.11",
    "prompt": "Write median(xs), the middle of a list of an odd number of integers; ValueError if it is empty.",
    "entry": "median",
    "limits": {"cpu": 0.3, "memory": 1 << 27},
    "tolerance": {"blanks": True, "floats": 1e-6},
    "tests": [
        {"rung": "stdio", "stdin": "3\n1\n2\n", "stdout": "2\n", "shown": True},
        {"rung": "stdio", "stdin": "5\n", "stdout": "5\n", "shown": True},
        {"rung": "stdio", "stdin": "9 8 7\n", "stdout": "8\n"},
        {"rung": "stdio", "stdin": "-4\n", "stdout": "-4\n"},
        {"rung": "function", "args": [[3, 1, 2]], "returns": 2, "shown": True},
        {"rung": "function", "args": [[1, 91, 92]], "returns": 91},
        {"rung": "function", "args": [[98765]], "returns": 98765},
        {"rung": "assertions", "code": "assert median([1]) == 1", "shown": True},
        {"rung": "assertions", "code": "xs = [3, 1, 2]\nassert median(xs) == 2\nassert xs == [3, 1, 2]"},
        {
            "rung": "assertions",
            "code": "for n in range(3):\n    assert median([n]) == n\nassert median([median([7])]) == 7\n"
            "try:\n    median([])\nexcept ValueError:\n    pass\nelse:\n    assert False",
        },
    ],
    "solutions": {
        "right": [RIGHT, RIGHT.replace("sorted(xs)[len(xs) // 2]", "__import__('statistics').median_low(xs)")],
        "wrong": [
            {"code": "while True: pass", "caught": "runs"},
            {"code": RIGHT.replace("print(", "print('median:', "), "caught": "stdio"},
            {"code": RIGHT.replace("return sorted", "return __name__ == '__main__' and sorted"), "caught": "function"},
            {"code": SORTS_IN_PLACE, "caught": "assertions"},
        ],
    },
    "part": "train",
}


def write_problems(path, *changes):
    """Write the problem with each of some changes, and return the file."""
    lines = [json.dumps({**LINE, **change}, ensure_ascii=False) for change in changes or ({},)]
    path.write_text("\n".join(lines) + "\n")
    return path
