"""Checkpoints of supervised fine-tuning, which any number of processes goes on from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from vecenv.learn.checkpoints import (
    check_optimiser,
    check_same_form,
    copied,
    load_checkpoint,
    save_checkpoint,
    telling_what_is_kept,
)
from vecenv.learn.runs import differences
from vecenv.learn.shards import ranks

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class SupervisedCheckpoint:
    """Where the state of a training is written, and how often.

    Attributes:
        path: of the file, which the training goes on from if it is there.
        every: optimiser steps between checkpoints; 0 for none.
        origin: what decides what is learned, by name.
    """

    path: Path
    every: int
    origin: Mapping[str, str]

    def load(self, model: PreTrainedModel, optimiser: torch.optim.Optimizer) -> tuple[int, list[float]]:
        """Go on from the file, if there is one, and return the steps made and the losses of the epoch under way.

        Raises:
            ValueError: it is no checkpoint, or one of another training; the message has what differs.
        """
        if not self.path.is_file():
            return 0, []
        state = load_checkpoint(self.path, torch.device("cpu"))
        if told := differences(state.get("origin", {}), self.origin):
            raise ValueError(f"{self.path} is of a training with other {told[0]}")
        own = {name: tensor for name, tensor in model.named_parameters() if tensor.requires_grad}
        check_same_form(state["model"], {name: tensor.cpu() for name, tensor in own.items()}, "model")
        check_optimiser(state["optimiser"], optimiser)
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(state["model"][name])
        optimiser.load_state_dict(state["optimiser"])
        return int(state["step"]), list(state["losses"])

    def after_step(
        self, step: int, losses: list[float], model: PreTrainedModel, optimiser: torch.optim.Optimizer
    ) -> None:
        """Write the state after a step that is due; of several ranks the first does."""
        if not self.every or step % self.every:
            return

        def write() -> str:
            own = {name: tensor for name, tensor in model.named_parameters() if tensor.requires_grad}
            state: dict[str, Any] = {"origin": dict(self.origin), "step": step, "losses": list(losses)}
            state |= {"model": copied(own), "optimiser": copied(optimiser.state_dict())}
            with telling_what_is_kept(self.path, None):
                save_checkpoint(state, self.path)
            return ""

        ranks().done_by_first(write)
