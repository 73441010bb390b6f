"""A typed client of ``vecenv serve``."""

from __future__ import annotations

from typing import Any

from openenv.core import EnvClient
from openenv.core.client_types import StepResult

from vecenv.adapters.guard import LONGEST_TEXT
from vecenv.adapters.openenv.models import MarketAction, MarketObservation, MarketState


class MarketClient(EnvClient[MarketAction, MarketObservation, MarketState]):
    """One agent of a served market.

    ::

        with MarketClient(base_url="http://127.0.0.1:8000").sync() as env:
            result = env.reset(split="train", index=3)
            while not result.done:
                result = env.step(MarketAction(text="HOLD"))
    """

    def _step_payload(self, action: MarketAction) -> dict[str, Any]:
        # The server refuses messages beyond all bounds, and answers that are too long.
        return {**action.model_dump(), "text": action.text[: LONGEST_TEXT + 1]}

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[MarketObservation]:
        reward, done = payload["reward"], payload["done"]
        seen = MarketObservation(**payload["observation"], reward=reward, done=done)
        return StepResult(observation=seen, reward=reward, done=done, metadata=payload.get("metadata"))

    def _parse_state(self, payload: dict[str, Any]) -> MarketState:
        return MarketState(**payload)
