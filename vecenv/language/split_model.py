"""Models whose weights are split over the ranks that learn, for those too large for one device (FSDP2).

Each rank has its part of every weight, gradient and moment of the optimiser, and gathers the whole of a layer while it
computes it. Gradients are added by an ordinary reduce-scatter, in the library's order: what is learned equals what a
whole model learns, but for rounding.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel

from vecenv.language.apart import ApartGRPO
from vecenv.language.log_probs import packed
from vecenv.learn.shards import Ranks


def split_over(model: PreTrainedModel, ranks: Ranks) -> None:
    """Split the weights of a model over some ranks, in place; each of its layers is gathered by itself.

    All ranks make the same passes through it from then on.

    Raises:
        ValueError: the ranks are no processes, or the model does not tell what its layers are.
    """
    if ranks.group is None:
        raise ValueError("a model is split over several processes: --processes")
    base: Any = model.get_base_model() if hasattr(model, "get_base_model") else model  # type: ignore[operator]
    names = {*(getattr(base, "_no_split_modules", None) or ())}
    layers = [module for module in base.modules() if type(module).__name__ in names]
    if not layers:
        raise ValueError(f"{type(base).__name__} cannot be split: it does not tell which modules are its layers")
    mesh = DeviceMesh.from_group(ranks.group, model.device.type)
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


def whole(value: Any) -> Any:  # noqa: ANN401
    """Return a state of split tensors, nested in dicts and lists, with whole ones; all ranks make it together."""
    if isinstance(value, DTensor):
        return value.full_tensor()
    if isinstance(value, Mapping):
        return {name: whole(one) for name, one in value.items()}
    return [whole(one) for one in value] if isinstance(value, list) else value


def own_part(value: Tensor, like: Tensor) -> Tensor:
    """Return the own part of a whole tensor that is split as another one, which may be whole too. Shape: any."""
    if not isinstance(like, DTensor):
        return value
    return cast("Tensor", distribute_tensor(value, like.device_mesh, like.placements, src_data_rank=None))


class SplitGRPO(ApartGRPO):
    """The learner on a rank that learns, with a part of the model, of its reference, and of the optimiser's moments.

    The first rank keeps a copy of the model on the CPU, in which it gathers the trained one at the end.

    Raises:
        ValueError: as `LanguageGRPO`, and as `split_over`.
    """

    def hold(self) -> None:
        super().hold()
        ranks = self.shards.ranks
        self._gathered = copy.deepcopy(self.model).cpu() if ranks.leads else None
        for model in (self.model, self.reference):
            if model is not None:
                split_over(model, ranks)
        self.make_optimiser()

    def whole(self, state: Any) -> Any:  # noqa: ANN401
        return whole(state)

    def part_of(self, value: Tensor, like: Tensor) -> Tensor:
        return own_part(value, like)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        for parameter, kept in self.optimiser.state.items():
            for name, value in kept.items():
                kept[name] = own_part(value, parameter) if value.ndim else value

    def added(self, each: Iterable[Tensor]) -> list[Tensor]:
        made = list(each)
        for parameter in self.parameters:
            if parameter.grad is not None:
                # The library has made the mean over the ranks.
                parameter.grad.mul_(self.shards.ranks.count)
        return made

    def passes(self, sizes: Sequence[int], model: PreTrainedModel) -> Iterator[list[int]]:
        """Yield the items of each pass, and make empty ones after them, as many as the rank with the most has more."""
        own = len([*packed(sizes, self.config.tokens_at_once)])
        most = int(self.shards.ranks.gathered(torch.tensor([own], device=model.device)).max())
        yield from super().passes(sizes, model)
        for _ in range(most - own):
            empty = model(input_ids=torch.full((1, 1), self.chat.pad, device=model.device)).logits.sum()
            if torch.is_grad_enabled():
                (0.0 * empty).backward()

    def finish(self) -> None:
        weights = self.whole(dict(self.model.named_parameters()))
        if self._gathered is not None:
            device = self.model.device
            with torch.no_grad():
                for name, tensor in self._gathered.named_parameters():
                    tensor.copy_(weights[name])
            self.model = self._gathered.to(device)  # type: ignore[arg-type]  # typed as another method
