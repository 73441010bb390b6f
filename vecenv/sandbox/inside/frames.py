"""Frames between the outside, the supervisor and a job: a header in JSON with sizes, then the bytes themselves."""

import json
import os
import struct
from collections.abc import Callable, Sequence
from typing import Any

LENGTH = struct.Struct("<I")


def packed(header: dict[str, Any], parts: Sequence[bytes]) -> bytes:
    """Return a frame of a header and parts."""
    head = json.dumps({**header, "sizes": [len(part) for part in parts]}).encode()
    return b"".join([LENGTH.pack(len(head)), head, *parts])


def unpacked(take: Callable[[int], bytes]) -> tuple[dict[str, Any], list[bytes]]:
    """Return header and parts of the frame that `take`, given a number of bytes, reads; EOFError if it ends early."""
    header = json.loads(take(LENGTH.unpack(take(LENGTH.size))[0]))
    return header, [take(size) for size in header["sizes"]]


def taken(descriptor: int, size: int) -> bytes:
    """Read exactly `size` bytes; EOFError if there are fewer."""
    parts = []
    while size:
        part = os.read(descriptor, min(size, 1 << 20))
        if not part:
            raise EOFError("the other side is gone")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
