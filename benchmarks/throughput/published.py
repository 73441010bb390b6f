"""Figures of others that a throughput curve is shown beside, as published and on their hardware."""

from __future__ import annotations

from typing import NamedTuple


class Published(NamedTuple):
    """A published throughput: of what and where, on what and what differs, number of environments, and rates."""

    what: str
    conditions: str
    num_envs: int | None = None
    steps_per_second: int | None = None
    messages_per_second: int | None = None

    def line(self) -> str:
        rates = [
            f"{rate:,} {unit}/s"
            for rate, unit in ((self.steps_per_second, "steps"), (self.messages_per_second, "messages"))
            if rate is not None
        ]
        count = "" if self.num_envs is None else f" at N={self.num_envs:,}"
        return f"published, not measured here: {', '.join(rates)}{count}: {self.what}; {self.conditions}"


_FINRL = Published(
    "parallel stock environment with PPO sampling, FinRL contests paper, figure 3",
    "one NVIDIA A100; its environment keeps day-0 features, leaves market profit out of the reward and lets cash go "
    "negative",
    num_envs=2048,
    steps_per_second=227_212,
)
_BOOKS = (
    Published(
        "JaxMARL-HFT, JAX order books with replayed and learning agents",
        "one NVIDIA L40S, 100 messages a step",
        num_envs=4000,
        steps_per_second=21_969,
        messages_per_second=2_196_900,
    ),
    Published("ABIDES, discrete-event simulation of agents", "one CPU core", messages_per_second=3_091),
    Published(
        "ABIDES, as measured by the authors of JaxMARL-HFT",
        "64 CPU cores, 100 messages a step",
        steps_per_second=734,
        messages_per_second=73_400,
    ),
)

PUBLISHED: dict[str, tuple[Published, ...]] = {
    "stock_trading": (_FINRL,),
    **dict.fromkeys(("agent_market", "execution", "market_making"), _BOOKS),
}
"""By task."""
