"""A typed client of ``vecenv serve``."""

from __future__ import annotations

from typing import Any

from openenv.core import EnvClient
from openenv.core.client_types import StepResult

from vecenv.adapters.guard import LONGEST_TEXT
from vecenv.adapters.openenv.models import TextAction, TextObservation, TextState


class TextClient(EnvClient[TextAction, TextObservation, TextState]):
    """One agent of a served world.

    ::

        with TextClient(base_url="http://127.0.0.1:8000").sync() as env:
            result = env.reset(split="train", index=3)
            while not result.done:
                result = env.step(TextAction(text="HOLD"))
    """

    def _step_payload(self, action: TextAction) -> dict[str, Any]:
        # The server refuses messages beyond all bounds, and answers that are too long.
        return {**action.model_dump(), "text": action.text[: LONGEST_TEXT + 1]}

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[TextObservation]:
        reward, done = payload["reward"], payload["done"]
        seen = TextObservation(**payload["observation"], reward=reward, done=done)
        return StepResult(observation=seen, reward=reward, done=done, metadata=payload.get("metadata"))

    def _parse_state(self, payload: dict[str, Any]) -> TextState:
        return TextState(**payload)
