"""Checkpoints: whole or not at all, sealed by a hash, loaded without pickled code, with checks of shapes and types."""

from __future__ import annotations

import contextlib
import hashlib
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from vecenv.system.files import replacing, why_unwritten

Module = TypeVar("Module", bound=nn.Module)


class _Target:
    """File object that records the `OSError` of a write, which `torch.save` replaces by another error."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        try:
            return self.file.write(data)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        """Do nothing: closing the file flushes it."""


def save_checkpoint(state: Mapping[str, Any], path: Path) -> None:
    """Write a checkpoint atomically: an interruption or a full disk (OSError) leaves the previous file."""
    with replacing(path) as partial, partial.open("wb") as file:
        target = _Target(file)
        try:
            torch.save({**state, SEAL: state_digest(state)}, target)  # type: ignore[arg-type]  # write and flush suffice
        except Exception:
            if target.error is not None:
                raise target.error from None
            raise


class RunStoppedError(OSError):
    """The folder of a run cannot be written; the message names it and the last checkpoint."""


@contextlib.contextmanager
def telling_what_is_kept(checkpoint: Path, update: str | None) -> Iterator[None]:
    """Convert an `OSError` into a `RunStoppedError` that names the run's folder and its last checkpoint, if any."""
    try:
        yield
    except RunStoppedError:
        raise
    except OSError as error:
        kept = "no checkpoint has been written yet"
        if update is not None:
            kept = f"the checkpoint of {update}, {checkpoint}, is kept"
        raise RunStoppedError(f"{checkpoint.parent}: {why_unwritten(error)}; {kept}") from error


def load_checkpoint(path: Path, device: torch.device) -> dict[str, Any]:
    """Read a checkpoint onto a device.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is not a checkpoint, or is corrupted or altered.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no checkpoint")
    damaged = f"{path}: not a checkpoint, or a damaged one"
    with path.open("rb") as file:
        try:
            # torch.load does not verify the archive's checksums.
            with zipfile.ZipFile(file) as archive:
                whole = archive.testzip() is None
            state = torch.load(path, map_location=device, weights_only=True) if whole else None
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            # A foreign file may raise any exception.
            raise ValueError(damaged) from error
    if not isinstance(state, dict):
        raise ValueError(damaged)
    seal = state.pop(SEAL, None)
    if seal is None:
        told = "written by an older version, without a hash of what it holds: alterations are not found"
        warnings.warn(f"{path}: {told}", stacklevel=2)
    elif seal != state_digest(state):
        raise ValueError(f"{path}: altered: the hash of what it holds does not match")
    return state


def check_same_form(saved: object, own: object, where: str) -> None:
    """Check that a saved state has the names, shapes and types of the state that it replaces.

    Raises:
        ValueError: naming the first difference, within the state named ``where``.
    """
    if isinstance(own, Mapping) and isinstance(saved, Mapping):
        lacking, further = [sorted(map(str, {*one} - {*other})) for one, other in ((own, saved), (saved, own))]
        if lacking or further:
            told = [f"lacks {', '.join(lacking)}"] * bool(lacking) + [f"also has {', '.join(further)}"] * bool(further)
            raise ValueError(f"its {where} {' and '.join(told)}")
        for name, value in own.items():
            check_same_form(saved[name], value, f"{where}.{name}")
    elif isinstance(own, list | tuple) and isinstance(saved, list | tuple):
        if len(saved) != len(own):
            raise ValueError(f"its {where} has {len(saved)} entries instead of {len(own)}")
        for index, value in enumerate(own):
            check_same_form(saved[index], value, f"{where}.{index}")
    elif _form(saved) != _form(own):
        raise ValueError(f"its {where} is {_form(saved)} instead of {_form(own)}")


def copied(value: Any) -> Any:  # noqa: ANN401
    """Return CPU copies of tensors nested in dicts and lists."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    return [copied(item) for item in value] if isinstance(value, list) else value


def network_of(path: Path, make: Callable[[], Module], weights: Mapping[str, Tensor]) -> Module:
    """Return the network that a file's settings make, with its weights, whose forms are compared before one is made.

    Raises:
        ValueError: the settings make no network, or one of other weights.
    """
    try:
        with torch.device("meta"):
            expected = dict(make().state_dict())
    except Exception as error:
        # Any, depending on the setting.
        told = str(error).strip().partition("\n")[0]
        raise ValueError(f"{path}: its settings make no network ({told})") from error
    try:
        check_same_form(weights, expected, "network")
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    network = make()
    network.load_state_dict(weights)
    return network


def check_optimiser(saved: object, optimiser: torch.optim.Optimizer) -> None:
    """Raise ValueError unless a state of Adam, before or after its first step, fits the optimiser's parameters."""
    own = optimiser.state_dict()
    parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    known = saved.get("state") if isinstance(saved, Mapping) else None
    # Parameters without a gradient so far have no moments.
    numbers = [number for number in range(len(parameters)) if isinstance(known, Mapping) and number in known]
    step = torch.zeros(())
    moments = {
        number: {"step": step, "exp_avg": parameters[number], "exp_avg_sq": parameters[number]} for number in numbers
    }
    check_same_form(saved, own | {"state": moments}, "optimiser")


def _form(value: object) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} of shape {tuple(value.shape)}"
    if isinstance(value, int | float):
        return "a number"
    return "nothing" if value is None else type(value).__name__


SEAL = "sha256"
"""Key of the hash."""


def digest_of(tensors: Mapping[str, Tensor], texts: Mapping[str, str] | None = None) -> str:
    """SHA-256 hash of tensors, by names, types, shapes and bytes, and of texts by name."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    for name, text in sorted((texts or {}).items()):
        digest.update(f"{len(name)} {len(text)} {name}{text}".encode())
    return digest.hexdigest()


def state_digest(state: Mapping[str, Any]) -> str:
    """`digest_of` a state of dictionaries, lists, tensors and plain values."""
    tensors, texts = dict[str, Tensor](), dict[str, str]()

    def collect(value: object, path: str) -> None:
        if isinstance(value, Tensor):
            tensors[path] = value
            return
        parts = dict(enumerate(value)) if isinstance(value, list | tuple) else value
        if not isinstance(parts, Mapping):
            texts[path] = repr(value)
            return
        texts[path] = f"{len(parts)} parts"
        for name, part in parts.items():
            collect(part, f"{path}/{name!r}")

    collect(state, "")
    return digest_of(tensors, texts)


def save_sealed(path: Path, kind: str, tensors: Mapping[str, Tensor], texts: Mapping[str, str]) -> None:
    """Write a sealed safetensors file atomically: an interruption or a full disk leaves the previous one."""
    own = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    metadata = {**texts, "format": kind}
    # Not by safetensors' save_file, whose errors hide the system's.
    whole = save(own, metadata | {SEAL: digest_of(own, metadata)})
    with replacing(path) as partial:
        partial.write_bytes(whole)


def load_sealed(
    path: Path, kind: str, what: str, device: torch.device | str
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read the tensors and texts of a sealed safetensors file; ``what`` names its kind in messages.

    Raises:
        ValueError: the file is truncated, altered, not sealed, or of another kind.
    """
    try:
        with safe_open(path, "pt", device=str(device)) as file:
            metadata = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a dict
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path}: not a whole safetensors file ({error})") from error
    if metadata.get("format") != kind:
        raise ValueError(f"{path}: a safetensors file, but not of a {what}")
    seal = metadata.pop(SEAL, None)
    if seal is None:
        raise ValueError(f"{path}: written by an older version, without a hash of what it holds: train it again")
    if seal == digest_of(tensors):
        told = "written by an older version, whose hash is of the tensors alone: altered settings are not found"
        warnings.warn(f"{path}: {told}", stacklevel=3)
    elif seal != digest_of(tensors, metadata):
        raise ValueError(f"{path}: altered or damaged: the hash of its tensors and settings does not match")
    return tensors, metadata
