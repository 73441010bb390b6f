"""Message types of the OpenEnv protocol: action, observation and state."""

from __future__ import annotations

from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field


class TextAction(Action):
    """Text of an agent: an answer, or a tool call."""

    text: str = Field(
        description="An answer, as the instructions say, or a call of a tool; what cannot be read is invalid and does "
        "nothing",
    )


class TextObservation(Observation):
    """Observation after a reset or a turn; nothing in it depends on later days."""

    text: str = Field(description="The day in words, or what a tool said")
    instructions: str = Field(default="", description="After a reset: what to tell a model before its first day")
    day: int = Field(description="Days answered")
    valid: bool = Field(default=True, description="Whether the answer could be read")
    acted: bool = Field(default=False, description="Whether the answer did more than wait")
    outcomes: dict[str, float | None] = Field(
        default_factory=dict, description="Of the episode so far, null where unknown; units are the state's"
    )
    grade: float | None = Field(default=None, description="Outcome in [0, 1], once the episode is over")
    failed: bool = Field(default=False, description="Whether the world failed, which is no failure of the agent")


class TextState(State):
    """State of a session; ``split``, ``seed`` and ``index`` identify its episode."""

    task: str = Field(default="", description="Name of the task")
    split: str | None = Field(default=None, description="Kind of the episodes: train, validation or test")
    seed: int | None = Field(default=None, description="Names the episode together with the index")
    index: int | None = Field(default=None, description="Number of the task within the split")
    day: int = Field(default=0, description="Days answered")
    done: bool = Field(default=False, description="Whether the episode is over")
    outcomes: dict[str, float | None] = Field(default_factory=dict, description="As of the last observation")
    units: dict[str, str] = Field(default_factory=dict, description="Of the outcomes: currency, share or count")
    currency: str | None = Field(default=None, description="Code of the currency, null where the market does not tell")
    total_reward: float = Field(default=0.0, description="Sum of the rewards of the episode so far")
    grade: float | None = Field(default=None, description="Outcome in [0, 1], once the episode is over")
    failed: bool = Field(default=False, description="Whether the world failed, so that there is no grade")
