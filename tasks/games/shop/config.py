"""Settings of the task ``shop``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from vecenv.system.settings import Positive, Seed, Settings, Share, When, Within


@dataclass(frozen=True)
class ShopConfig(Settings):
    """The catalogue, how instructions are worded, and how long an agent may shop."""

    catalogue: str = ""
    """File of products, a JSON object a line; by default they are generated."""
    products: Annotated[int, Within(10, 50_000), When("catalogue", "", told="a generated catalogue")] = 10_000
    """Products of the generated catalogue."""
    catalogue_seed: Annotated[Seed, When("catalogue", "", told="a generated catalogue")] = 0
    """Seed of the generated catalogue."""
    wording: Literal["template", "paraphrase"] = "template"
    """Instructions in one form and the catalogue's own words, or in several forms and, where there are any, others."""
    max_steps: Annotated[int, Within(1, 1_000)] = 50
    """Most actions of an episode."""
    saturation: Positive = 0.9
    """BM25's k1: how slowly repeated words add to a score."""
    length_weight: Share = 0.4
    """BM25's b: how much long products are discounted."""
