"""JSON that somebody else wrote, refused where it is nested deeper than any that is meant.

Python's parser follows the nesting on its own stack, down to the limit of recursion. Garbage that is collected there is
finalised without a frame left: finalisers fail, and what they would have closed or removed stays.
"""

import json
import re
from typing import Any

DEEPEST = 100
"""Objects and lists within each other: far more than any text means, far less than Python's parser may go down."""

# Texts in runs, and nothing given back: else long ones take five times as long, and hostile ones the square of theirs.
_MARK = re.compile(r'[\[\]{}]|"(?:[^"\\]++|\\.)*+"?', re.DOTALL)


def read_json(text: str | bytes, **options: Any) -> Any:  # noqa: ANN401
    """Return what `json.loads` does.

    Raises:
        ValueError: it is no JSON, or nested deeper than `DEEPEST` levels.
    """
    if isinstance(text, bytes):
        text = text.decode(json.detect_encoding(text), "surrogatepass")
    check_depth(text)
    return json.loads(text, **options)


def check_depth(text: str, start: int = 0, deepest: int = DEEPEST) -> None:
    """Raise ValueError if the JSON value that begins at or after ``start`` is nested deeper than ``deepest`` levels.

    Of a text that is no JSON, the part that a parser would read is judged, and perhaps more.
    """
    # What has few brackets is counted in a tenth of the time. Behind other values the count would be of the whole rest.
    if len(text) - start <= deepest or (start == 0 and text.count("[") + text.count("{") <= deepest):
        return
    depth = 0
    for mark in _MARK.finditer(text, start):
        if mark[0] in "[{":
            depth += 1
            if depth > deepest:
                raise ValueError(f"it is nested deeper than {deepest} levels")
        elif mark[0] in "]}":
            depth -= 1
        if depth <= 0:
            return
