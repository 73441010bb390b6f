"""Validation of a saved environment state before it is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from vecenv.core.tensor_checks import check_same_forms, checked_integers

IDENTITY_BITS = {"seed": 63, "env_ids": 32, "start_ids": 32}
"""Seed and ids of a saved state with their widths in bits; all are non-negative integers."""


def check_state(
    state: Mapping[str, Any], scenario: Mapping[str, str], rows: Mapping[str, Tensor], seed: Sequence[int] = ()
) -> None:
    """Check that a saved state is of an environment's scenario, version and size.

    Args:
        state: a saved state.
        scenario: name and version of the environment's scenario.
        rows: tensors of the environment's rows, by name. Batch: (N,).
        seed: shape of the environment's seed: (), or (N,) of rows that have their own.

    Raises:
        ValueError: it is of another scenario, version or number of rows, or a tensor is missing or has another shape
            or type.
    """
    if state.get("scenario") != scenario:
        raise ValueError(f"state of {state.get('scenario')} does not fit {scenario}")
    num_envs = len(rows["elapsed"])
    ids, saved = state.get("env_ids"), state.get("rows")
    if isinstance(ids, Tensor) and ids.ndim == 1 and len(ids) != num_envs:
        raise ValueError(f"state of {len(ids)} rows does not fit {num_envs}")
    for name, bits in IDENTITY_BITS.items():
        checked_integers(f"{name} of the state", state.get(name), seed if name == "seed" else (num_envs,), bits)
    if not isinstance(saved, Sequence) or len(saved) != len(rows):
        raise ValueError(
            f"state with {len(saved) if isinstance(saved, Sequence) else 'no'} tensors of rows does not fit {len(rows)}"
        )
    check_same_forms("state", dict(zip(rows, saved, strict=True)), rows)
