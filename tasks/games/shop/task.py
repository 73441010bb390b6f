"""Registration record of the task ``shop``."""

from __future__ import annotations

from vecenv.learn.domain import Domain
from vecenv.registry import Task
from vecenv.tasks.games.shop.agents import AGENTS
from vecenv.tasks.games.shop.config import ShopConfig
from vecenv.tasks.games.shop.figures import agents_figures
from vecenv.tasks.games.shop.records import ShopRecording
from vecenv.tasks.games.shop.scenario import Shop
from vecenv.tasks.games.shop.text import ShopText

SHOP = Task(
    name="shop",
    version="1",
    scenario=Shop,
    config=ShopConfig,
    agents=AGENTS,
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
        pictures=agents_figures,
        scale="what is bought, as WebShop scores it: 1 if type, attributes, options and price are those asked for, 0 "
        "without a purchase",
    ),
    text=ShopText,
    recording=ShopRecording(),
)
"""The record of the shop."""
