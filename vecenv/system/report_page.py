"""Self-contained HTML pages: a title, cards of figures, sections, and texts that open on a click."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

_CSS = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1d2128; background: #f5f6f8; margin: 0; }
main { max-width: 1040px; margin: 0 auto; padding: 24px 20px 60px; }
h1 { font-size: 24px; margin: 0; } h2 { font-size: 17px; margin: 0 0 10px; }
.sub { color: #626975; margin: 2px 0 18px; }
section { background: #fff; border: 1px solid #e2e5ea; border-radius: 8px; padding: 16px 18px; margin: 0 0 16px; }
.cards { display: flex; flex-wrap: wrap; gap: 10px; margin: 0 0 16px; }
.card { background: #fff; border: 1px solid #e2e5ea; border-radius: 8px; padding: 10px 16px; }
.card b { display: block; font-size: 20px; } .card span { color: #626975; font-size: 13px; }
svg { display: block; width: 100%; height: auto; }
svg text { font-family: system-ui, sans-serif !important; }
.wide { overflow-x: auto; } .wide > svg { min-width: 640px; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; width: 100%; }
th, td { text-align: right; padding: 4px 8px; border-bottom: 1px solid #eceef1; white-space: nowrap; }
th { color: #626975; font-weight: 600; vertical-align: bottom; }
th:first-child, td:first-child, th:nth-child(2), td:nth-child(2) { text-align: left; }
tr:last-child td { font-weight: 600; border-bottom: 0; } .minus { color: #b54708; } .zero { color: #b9bec6; }
details { border-top: 1px solid #eceef1; padding: 6px 0; } summary { cursor: pointer; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: #f5f6f8; border-radius: 6px;
  padding: 10px 12px; font-size: 13px; margin: 8px 0; }
pre.action { background: #eaf3fa; } .wrong { color: #b54708; font-weight: 600; }
.plain tr:last-child td { font-weight: 400; } .plain th:nth-child(2), .plain td:nth-child(2) { text-align: right; }
.narrow { display: none; }
@media (max-width: 640px) {
  main { padding: 14px 8px 40px; } section { padding: 12px 10px; }
  .narrow { display: block; } .broad { display: none; }
  table { font-size: 12px; } th, td { padding: 4px 5px; } th, td:first-child { white-space: normal; }
}
"""


def page(title: str, subtitle: str, cards: Iterable[tuple[str, str]], sections: Mapping[str, str]) -> str:
    """Return a page: cards are values and what they are; a heading that begins with an underscore is not shown."""
    parts = [f"<h1>{escape(title)}</h1>", f'<p class="sub">{escape(subtitle)}</p>', _cards(cards)]
    for heading, content in sections.items():
        shown = "" if heading.startswith("_") else f"<h2>{escape(heading)}</h2>"
        parts.append(f"<section>{shown}{content}</section>")
    view = '<meta name="viewport" content="width=device-width, initial-scale=1">'
    head = f'<meta charset="utf-8">{view}<title>{escape(title)}</title><style>{_CSS}</style>'
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n<body><main>{"".join(parts)}</main></body></html>\n'


def _cards(cards: Iterable[tuple[str, str]]) -> str:
    inner = "".join(
        f'<div class="card"><b>{escape(value)}</b><span>{escape(name)}</span></div>' for value, name in cards
    )
    return f'<div class="cards">{inner}</div>'


def conversation(heading: str, marks: Sequence[str], messages: Sequence[Mapping[str, str]], result: str) -> str:
    """Return the texts of a step, collapsed, with ``marks`` of what was wrong and what came of it."""
    wrong = f' <span class="wrong">{escape(", ".join(marks))}</span>' if marks else ""
    texts = "".join(
        f'<pre class="{"action" if message["role"] == "assistant" else ""}">{escape(message["content"])}</pre>'
        for message in messages
    )
    return f"<details><summary>{escape(heading)}{wrong}</summary>{texts}<p>{escape(result)}</p></details>"


def shortened(text: str, most: int = 80) -> str:
    """Return the beginning of a text."""
    return text if len(text) <= most else f"{text[:most]}…"


def values(summary: str, entries: Mapping[str, Any]) -> str:
    """Return JSON values, collapsed."""
    text = json.dumps(entries, indent=2)
    return f"<details><summary>{escape(summary)}</summary><pre>{escape(text)}</pre></details>"


def word_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of words, whose first column is on the left."""
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    body = "".join(f"<tr>{''.join(f'<td>{escape(word)}</td>' for word in row)}</tr>" for row in rows)
    return f'<div class="wide"><table class="plain"><tr>{head}</tr>{body}</table></div>'


def number_table(heads: Sequence[str], rows: Sequence[tuple[Sequence[str], Sequence[float]]]) -> str:
    """Return a table of words, then signed numbers, whose last row is set off."""
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(word)}</td>' for word in words)}{''.join(map(_cell, numbers))}</tr>"
        for words, numbers in rows
    )
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>'


def _cell(value: float) -> str:
    kind = "zero" if value == 0 else "minus" if value < 0 else ""
    return f'<td class="{kind}">{value:+.3f}</td>' if value else f'<td class="{kind}">0</td>'
