"""GRPO of a language model on ranks of two kinds: some generate what the others learn from.

So a device holds either caches of keys and values, or gradients and the optimiser's moments. Those that play have the
weights of each update before they generate the next episodes, sent by name and version; of adapters these are all that
is sent. The shards of the run are as ever, so neither the number of the ranks that play nor whether there are any is
part of the result.
"""

from __future__ import annotations

import io
import json
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from vecenv.language.conversation import Segment
from vecenv.language.grpo import LanguageEpisodes, LanguageGRPO
from vecenv.learn.runs import Metrics, progress_metrics

PLAY, LEARNED = "play", "learned"
"""What the first of those that learn tells those that play."""


class ApartGRPO(LanguageGRPO):
    """The learner on one of the ranks of `vecenv.learn.shards.Ranks.apart`; all of them make the same calls.

    Raises:
        ValueError: as `LanguageGRPO`.
    """

    def __init__(self, *arguments: Any, **keywords: Any) -> None:  # noqa: ANN401
        super().__init__(*arguments, **keywords)
        # Update whose weights these are.
        self.version = 0
        self._told: Metrics = {}

    @property
    def plays(self) -> bool:
        """Whether this rank plays what others learn from."""
        return bool(self.shards.ranks.plays)

    def hold(self) -> None:
        super().hold()
        if self.plays:
            self.reference = None

    def update(self) -> Metrics:
        """Make one update; metrics of the learning are those of the ranks that learn."""
        ranks, started = self.shards.ranks, time.perf_counter()
        send_weights(self)
        if not self.plays:
            metrics = super().update()
            ranks.told_by_first(LEARNED)
            return metrics
        # What it went on from was compared with that of the others; it makes no step.
        self.optimiser.state.clear()
        while ranks.told_by_first("") == PLAY:
            self._played(super().collect())
        self.update_number += 1
        rate = self.optimiser.param_groups[0]["lr"]
        return progress_metrics(self, self.batch_size, time.perf_counter() - started, rate)

    def collect(self) -> list[LanguageEpisodes]:
        """Let those that play do so, and return the episodes of each own shard, which learns."""
        self.shards.ranks.told_by_first(PLAY)
        self.rollouts += 1
        return self._played([])

    def outcomes(self) -> Metrics:
        return self._told

    def _played(self, own: list[LanguageEpisodes]) -> list[LanguageEpisodes]:
        """Send the episodes of each own shard that has been played, and return those of the own ones that learn."""
        told = super().outcomes() if self.plays else {}
        sent = [
            {
                "update": self.version,
                "episodes": vars(part) | {"said": [[asdict(one) for one in segments] for segments in part.said]},
                "calls": dict(agent.calls),
                "outcomes": told,
            }
            for part, agent in zip(own, self.agents, strict=False)
        ]
        shards = self._of_players(sent)
        for number, shard in enumerate(shards):
            if shard["update"] != self.version:
                raise ValueError(
                    f"shard {number} was played with the weights of update {shard['update']}, not {self.version}"
                )
        if self.plays:
            return own
        self._told = shards[0]["outcomes"]
        mine = shards[self.shards.first : self.shards.first + self.shards.own]
        for agent, shard in zip(self.agents, mine, strict=True):
            agent.calls = Counter(shard["calls"])
        return [_episodes(shard["episodes"]) for shard in mine]

    def _of_players(self, own: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return what those that play tell, of each shard or rank of theirs in order; ``own`` is this one's."""
        written = io.BytesIO()
        torch.save(own, written)
        told = self.shards.ranks.every(written.getvalue())
        device = self.model.device
        return [one for part in told for one in torch.load(io.BytesIO(part), map_location=device, weights_only=True)]

    def environment_state(self) -> dict[str, Any]:
        # Of those that learn no row has moved.
        own = [super().environment_state()] if self.plays else []
        return self._of_players(own)[0]

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if self.plays:
            state = {name: value for name, value in state.items() if name != "reference"}
        super().load_state_dict(state)


def send_weights(learner: ApartGRPO) -> None:
    """Copy the learned weights of the first rank into those of the ranks that play, by name.

    Raises:
        ValueError: this rank's have other names, shapes or types.
    """
    ranks, own = learner.shards.ranks, learner.learned_weights()
    form = {name: [list(tensor.shape), str(tensor.dtype)] for name, tensor in own.items()}
    sent = json.loads(ranks.told_by_first(json.dumps({"update": learner.update_number, "form": form})))
    for name in [name for name in {**sent["form"], **form} if sent["form"].get(name) != form.get(name)]:
        first, here = (known.get(name, "none") for known in (sent["form"], form))
        raise ValueError(
            f"the weights that were sent are not those of this rank's model: {name} is {first}, not {here}"
        )
    for kind in dict.fromkeys(tensor.dtype for tensor in own.values()):
        tensors = [tensor for tensor in own.values() if tensor.dtype == kind]
        flat = ranks.of_first(torch.cat([tensor.detach().flatten() for tensor in tensors]))
        if learner.plays:
            _fill(tensors, flat)
    learner.version = sent["update"]


@torch.no_grad()
def _fill(tensors: list[Tensor], flat: Tensor) -> None:
    for tensor, part in zip(tensors, flat.split([one.numel() for one in tensors]), strict=True):
        tensor.copy_(part.view_as(tensor))


def _episodes(told: Mapping[str, Any]) -> LanguageEpisodes:
    said = [[Segment(**segment) for segment in segments] for segments in told["said"]]
    return LanguageEpisodes(**{**told, "said": said})
