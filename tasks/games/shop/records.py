"""Records of episodes in the shop: pages, answers, what they did, and what was bought."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from vecenv.core.env import VecEnv
from vecenv.core.rows import Rows
from vecenv.core.scenario import Scenario
from vecenv.tasks.games.shop.figures import path_figure
from vecenv.tasks.games.shop.scenario import Page, Session, Shop
from vecenv.tasks.games.shop.text import ShopText
from vecenv.text.recorder import RecordedRows
from vecenv.text.recording import Columns, Figures, Recording, Values
from vecenv.text.records import EpisodeRecord, StepRecord

PARTS = ("type", "attributes", "options", "price")
"""What a purchase is scored by."""


@dataclass(frozen=True, kw_only=True)
class ShopStep(StepRecord):
    """One action: page and open product after it, whether it did anything, what a purchase would earn, outcomes."""

    page: str
    item: str
    acted: bool
    worth: float
    outcomes: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class ShopEpisode(EpisodeRecord):
    """One episode: what was asked for, the product that the instruction was made of, and the number of actions.

    ``total_return`` is the grade, as no money is made.
    """

    steps_field = "turns"
    step_type = ShopStep

    instruction: str
    target: str
    actions: int
    turns: list[ShopStep]


class ShopRecording(Recording[ShopStep, ShopEpisode]):
    """Records of the shop."""

    episode = ShopEpisode
    scenario = Shop
    family = "the shop"
    step_name = "step"
    unchecked = ("versions.vecenv",)
    columns: ClassVar[Columns] = {
        "step": None,
        **dict.fromkeys(("page", "item", "acted", "worth", "valid", "reward")),
        "outcome": lambda record, turn: turn.outcomes,
    }
    figures: ClassVar[Figures] = {"Way through the shop": path_figure}
    metadata = ("versions", "task", "config", "seed", "env_id", "episode")

    def decided(self, env: VecEnv, rows: Rows, ids: Tensor, action: Tensor) -> tuple[list[str], list[bool]]:
        """Return actions as answers, and which of them are valid."""
        scenario, text = env.scenario, env.scenario.text
        assert isinstance(scenario, Shop)
        assert isinstance(text, ShopText)

        def valid(state: Session, action: Tensor) -> Tensor:
            return scenario.understood(state, action, scenario.shared)[1]

        places = text.places(rows.state)
        answers = [text.words.written(row, place) for row, place in zip(action.tolist(), places, strict=True)]
        return answers, torch.vmap(valid)(rows.state, action).tolist()

    def step_columns(self, recorded: RecordedRows, decided: tuple[list[str], list[bool]]) -> Values:
        state, info = recorded.state, recorded.info
        names = recorded.env.scenario.outcomes
        return {
            "answer": decided[0],
            "valid": decided[1],
            "page": [Page(page).name.lower() for page in state.page.tolist()],
            "item": _ids(recorded.env, torch.where(state.page >= Page.ITEM, state.item, -1)),
            "acted": state.acted.tolist(),
            "worth": info["worth"],
            "outcomes": [{name: info[name][row] for name in names} for row in range(len(recorded.ids))],
        }

    def episode_columns(self, recorded: RecordedRows, start: Session, steps: Sequence[Sequence[ShopStep]]) -> Values:
        scenario, text = recorded.env.scenario, recorded.env.scenario.text
        assert isinstance(text, ShopText)
        kinds = scenario.shared["type"][start.target][:, None]
        wanted = torch.cat([kinds, start.wanted, start.wanted_options], dim=-1).tolist()
        asked = zip(start.form.tolist(), wanted, start.limit.tolist(), strict=True)
        return {
            "instruction": [text.instruction(form, tuple(own), limit) for form, own, limit in asked],
            "target": _ids(recorded.env, start.target),
            "actions": recorded.state.steps.tolist(),
            "total_return": [own[-1].reward if own else 0.0 for own in steps],
        }

    def title(self, record: ShopEpisode) -> str:
        return f"{record.task}, seed {record.seed}, {record.row}: {record.instruction}"

    def heading(self, record: ShopEpisode) -> str:
        return record.instruction

    def result(self, record: ShopEpisode) -> dict[str, Any]:
        return {"steps": len(record.turns), "outcomes": record.turns[-1].outcomes if record.turns else {}}

    def origin(self, record: ShopEpisode) -> dict[str, Any]:
        return {"episode": record.episode}

    def step_lines(self, step: ShopStep, scenario: Scenario) -> list[tuple[str, str]]:
        if step.page == Page.BOUGHT.name.lower():
            style = "green" if step.outcomes["success"] else "yellow"
            parts = ", ".join(
                f"{name} {step.outcomes[name]:.0%}" for name in ("type", "attributes", "options", "price")
            )
            return [(f"Your purchase scores {step.reward:.2f} of 1: {parts}", style)]
        return [] if step.acted or not step.valid else [("That did nothing", "yellow")]

    def outcome(self, record: ShopEpisode) -> dict[str, str]:
        last: Mapping[str, float] = record.turns[-1].outcomes if record.turns else {}
        told = {name.capitalize(): f"{last.get(name, 0.0):.0%}" for name in PARTS}
        bought = next((turn.item for turn in record.turns if turn.page == Page.BOUGHT.name.lower()), "nothing")
        grades = {name.capitalize(): f"{grade:.3f}" for name, grade in record.grades.items()}
        return {"Bought": bought, **grades, **told, "Invalid": str(sum(not turn.valid for turn in record.turns))}

    def subtitle(self, record: ShopEpisode, length: str) -> Sequence[str]:
        return length, f"made of product {record.target}"

    def summary(self, step: ShopStep, record: ShopEpisode) -> Sequence[str]:
        return f"page {step.page}", *([f"product {step.item}"] if step.item else []), f"worth {step.worth:.2f}"


def _ids(env: VecEnv, numbers: Tensor) -> list[str]:
    products = env.scenario.catalogue.products  # type: ignore[attr-defined]
    return [products[number].id if number >= 0 else "" for number in numbers.tolist()]


RECORDING = ShopRecording()
