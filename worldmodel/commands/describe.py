"""Describe a checkpoint: its weights' name, and the days that each market was trained on, with their hash."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rich.console import Console

from vecenv.worldmodel.network.checkpoint import load_network
from vecenv.worldmodel.network.named_weights import model_file

UNKNOWN = "–"


@dataclass(frozen=True)
class DescribeSettings:
    """Describe a neural market: its weights, and the data that they were trained on."""

    model: str = "shipped"
    """Weights by name, shipped or judged, or a checkpoint."""


def describe(settings: DescribeSettings) -> dict[str, Any]:
    """Describe a neural market: its weights, and the data that they were trained on.

    Raises:
        FileNotFoundError: there is no such checkpoint.
        ValueError: it is not one of a neural market.
    """
    file = model_file(settings.model)
    saved = load_network(file)
    parameters = sum(tensor.numel() for tensor in saved.network.parameters())
    label = saved.record.get("label")
    console = Console()
    console.print(f"{file}: {parameters:,} parameters, labelled {label or UNKNOWN}", soft_wrap=True)
    sources = saved.record.get("sources", {})
    for name in saved.network.settings.markets:
        source = sources.get(name, {})
        first, trained, chosen, digest = (
            source.get(key, UNKNOWN) for key in ("first_day", "train_end", "validation_end", "sha256")
        )
        symbols = len(source.get("symbols", ()))
        told = f"{symbols} symbols from {first}, trained until {trained}, chosen until {chosen}, bars {digest}"
        console.print(f"{name}: {told}", soft_wrap=True)
    if (start := saved.record.get("init")) is not None:
        console.print(f"Fitted from {start['weights']}, market {start.get('market', UNKNOWN)}", soft_wrap=True)
    return {"file": str(file), "parameters": parameters, "label": label, "sources": sources}
