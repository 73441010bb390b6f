"""Registration record of the task ``shop``."""

from __future__ import annotations

from vecenv.learn.domain import Domain
from vecenv.registry import Task
from vecenv.system.later import later
from vecenv.tasks.games.shop.config import ShopConfig

SHOP = Task(
    name="shop",
    version="1",
    scenario=later("vecenv.tasks.games.shop.scenario:Shop"),
    config=ShopConfig,
    agents=later("vecenv.tasks.games.shop.agents:AGENTS"),
    outcomes={
        "success": "share",
        "type": "share",
        "attributes": "share",
        "options": "share",
        "price": "share",
        "bought": "share",
    },
    actions=lambda config: "other",
    domain=Domain(
        reference="first_match",
        hindsight="hindsight",
        teachers=("first_match", "hindsight"),
        pictures=later("vecenv.tasks.games.shop.figures:agents_figures"),
        scale="what is bought, as WebShop scores it: 1 if type, attributes, options and price are those asked for, 0 "
        "without a purchase",
    ),
    text=later("vecenv.tasks.games.shop.text:ShopText"),
    recording=later("vecenv.tasks.games.shop.records:RECORDING"),
)
"""The record of the shop."""
