r"""What language models wrap around an answer or a call, taken off the same way for all of them.

1.  **Marks.** ``<think>`` may also be called ``<thinking>``, ``<thought>``, ``<reasoning>`` or ``[THINK]``, and what
    gpt-oss says before its last message is reasoning. A mark that ends a turn, such as ``<|im_end|>``, ``<|eot_id|>``
    or ``</s>``, ends the text, unless nothing stands before it; one that begins a turn, such as
    ``<|im_start|>assistant``, is a blank.
2.  **Look-alikes.** Blanks, dashes, quotation marks, bullets and punctuation outside of ASCII become the ASCII ones;
    characters without width are dropped. Letters and digits of other alphabets stay what they are.
3.  **Box.** The last ``\boxed{…}`` in what is left is the content.
4.  **Lines.** Quotation marks, asterisks, backquotes, brackets and braces are blanks. A line of a code fence is none.
    From the front of each line marks of quotations and headings, bullets, numbers and an opening such as
    ``Final answer:`` are taken, unless a number follows it; from its end full stops, exclamation marks and underscores.
"""

from __future__ import annotations

import re

_FLAGS = re.ASCII | re.IGNORECASE
_LOOKS = str.maketrans(
    {
        **dict.fromkeys("\xa0\u1680\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B))), " "),
        **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff", ""),
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe63\uff0d", "-"),
        # No sign of a number.
        **dict.fromkeys("\u2022\u25e6\u25aa\u25cf\xb7", "*"),
        **dict.fromkeys("\u201c\u201d\u201e\xab\xbb", '"'),
        **dict.fromkeys("\u2018\u2019\u201a\u2039\u203a", "'"),
        **dict(zip("\uff1a\uff1b\uff0c\u3002\uff05\uff1d\uff20\uff0b", ":;,.%=@+", strict=True)),
    }
)
_THOUGHT = re.compile(r"[<\[](/?)(?:think|thinking|thought|reasoning)[>\]]", _FLAGS)
_HARMONY = re.compile(
    r"(<\|channel\|>\s*+analysis\s*+<\|message\|>)|(<\|end\|>\s*+<\|start\|>\s*+assistant(?=\s*+(?:<\|channel\|>|to=)))"
    r"|<\|channel\|>\s*+(?:final|commentary)\s*+<\|message\|>",
    _FLAGS,
)
_BEGUN = re.compile(
    r"<\|(?:im_start|start)\|>\s*assistant|<\|start_header_id\|>\s*assistant\s*<\|end_header_id\|>"
    r"|<start_of_turn>\s*model|<s>|<bos>|<\|begin_of_text\|>",
    _FLAGS,
)
_ENDED = re.compile(
    r"<\|(?:im_end|eot_id|eom_id|end|endoftext|end_of_text|end_of_turn|return)\|>|</s>|<eos>|<end_of_turn>"
    r"|<\|(?:im_start|start_header_id)\|>|<start_of_turn>|<\uff5cend\u2581of\u2581sentence\uff5c>",
    _FLAGS,
)
_BOX = re.compile(r"\\boxed\{([^{}]*+)\}", _FLAGS)
_BLANK = str.maketrans(dict.fromkeys("\"'`*{}[]", " "))
_FENCE = re.compile(r"[ \t]*+(?:```|~~~)[ \t]*+[a-z0-9_+-]*+[ \t]*+", _FLAGS)
_FRONT = re.compile(
    r"[-+>#]++(?=[ \t]|[a-z])|\(?[0-9]{1,2}[.)](?=[ \t])"
    r"|(?:(?:my|the|your|final)[ \t]++){0,3}(?:answer|action|decision|order|output|response|signal|rating)s?"
    r"[ \t]*+(?::(?![ \t]*+[+-]?[0-9])|\Z)",
    _FLAGS,
)


def without_marks(text: str) -> str:
    """Return a text without the marks of turns, and with all marks of reasoning alike."""
    if "<" in text or "[" in text:
        text = _HARMONY.sub(lambda mark: "<think>" if mark[1] else "</think>" if mark[2] else " ", text)
        text = _BEGUN.sub(" ", _THOUGHT.sub(r"<\1think>", text)).lstrip()
        for _ in range(4):
            ended = _ENDED.search(text)
            if ended is None:
                break
            if ended.start():
                return text[: ended.start()]
            text = text[ended.end() :].lstrip()
    return text


def look_alikes(text: str) -> str:
    """Return a text with ASCII characters for those that look like them."""
    return text if text.isascii() else text.translate(_LOOKS)


def boxed(text: str) -> str:
    """Return the content of the last box of a text, or all of it."""
    boxes = _BOX.findall(text)
    return boxes[-1] if boxes else text


def bare(line: str) -> str:
    """Return a line of an answer without its dress, empty if there is nothing else."""
    if _FENCE.fullmatch(line):
        return ""
    line = line.translate(_BLANK).strip(" \t_")
    for _ in range(6):
        front = _FRONT.match(line)
        if front is None:
            break
        line = line[front.end() :].strip(" \t_")
    return line.rstrip(" \t_.!")
