"""Exports by `vecenv export`: a policy's file, a manifest of its inputs, and observations to check it on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

import vecenv
from vecenv.core.capabilities import Column, NamedColumns
from vecenv.core.env import VecEnv
from vecenv.learn.ensemble import load_ensemble, played_observations
from vecenv.learn.exported import FILES, INPUT, OUTPUT, differing, read_policy, write_policy
from vecenv.learn.settings.run import RESULTS
from vecenv.system.files import WriteLock, replacing
from vecenv.tasks.commands.evaluate import EvaluateSettings
from vecenv.tasks.commands.evaluation import environment_of
from vecenv.tasks.experiment.checkpoints import read_checkpoint, trained_config
from vecenv.tasks.experiment.progress import wide_console, working
from vecenv.tasks.experiment.seeds import policy_files

if TYPE_CHECKING:
    from vecenv.tasks.commands.export import ExportSettings

FORMAT = "vecenv exported policy 1"

PACKAGES = ("onnx", "onnxscript", "onnxruntime")
"""Of the extra `onnx`."""

MANIFEST, OBSERVATIONS = "manifest.json", "observations.npz"


def exported(settings: ExportSettings) -> dict[str, Any]:
    """Write the file, the observations and the manifest of a policy, and return the manifest.

    Raises:
        ImportError: the form needs packages of the extra ``onnx``.
        ValueError: there is no policy, it has no such form, or the file decides otherwise than the policy.
    """
    assert settings.checkpoint is not None
    if settings.to == "onnx" and (lacking := [name for name in PACKAGES if find_spec(name) is None]):
        raise ImportError(f"--to onnx needs {', '.join(lacking)}: pip install 'vecenv[onnx]', or give --to torch")
    console, place = wide_console(), settings.checkpoint
    checkpoints = policy_files(place)
    folder = settings.folder or (place if place.is_dir() else place.parent) / f"export-{settings.to}"
    given = ["--checkpoint", str(place), *([] if settings.market is None else ["--market", settings.market])]
    own = _own_actions(EvaluateSettings.defaults(given), next(iter(checkpoints.values())))
    env = environment_of(own, checkpoints, console, own_actions=True)
    if not isinstance(env, VecEnv):
        raise ValueError(f"{place}: conversations have no policy of numbers to export")
    policy, file = load_ensemble([*checkpoints.values()], env), FILES[settings.to]
    with WriteLock(folder):
        with working(console, f"Exporting to {folder / file} …"), replacing(folder / file) as partial:
            write_policy(policy, env, partial, settings.to)
        with torch.no_grad(), working(console, f"Recording {settings.observations:,} observations …"):
            seen = played_observations(policy, env, settings.seed, env.scenario.longest or settings.observations)
            # Evenly over all episodes and their days.
            seen = seen[torch.linspace(0, len(seen) - 1, min(settings.observations, len(seen))).long()]
            action = policy.act(policy.parameters, seen, None, None)[0]  # type: ignore[arg-type]
            if env.scenario.action_spec.dtype.is_floating_point:
                action = torch.clamp(action, env.scenario.action_spec.space.low, env.scenario.action_spec.space.high)
        with replacing(folder / OBSERVATIONS) as partial, partial.open("wb") as opened:
            np.savez_compressed(opened, observation=seen.cpu().numpy(), action=action.cpu().numpy())
        manifest = _manifest(env, checkpoints, folder / file)
        manifest["check"] = found = _compared(folder / file, seen.cpu(), action.cpu(), manifest["output"])
        with replacing(folder / MANIFEST) as partial:
            partial.write_text(json.dumps(manifest, indent=1, allow_nan=False) + "\n")
    _tell(folder, found)
    return {"folder": str(folder), **manifest}


def _own_actions(settings: EvaluateSettings, path: Path) -> EvaluateSettings:
    """Return settings with the actions of a checkpoint's policy, which those of a comparison of agents may not be."""
    trained = trained_config(read_checkpoint(path)["scenario"], str(path))
    own = {name: getattr(trained, name) for name in ("action", "max_orders") if hasattr(settings.env, name)}
    return replace(settings, env=replace(settings.env, **own))


def checked(folder: Path) -> dict[str, Any]:
    """Play an exported file on its recorded observations, and return how many decisions differ.

    Raises:
        ValueError: the folder holds no export, its file is another than the manifest's, or decisions differ.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        with np.load(folder / OBSERVATIONS) as recorded:
            seen, action = (torch.from_numpy(recorded[name]) for name in (INPUT, OUTPUT))
        file, output = folder / manifest["file"], manifest["output"]
        whole = _digest(file) == manifest["sha256"]
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"{folder}: not the folder of an export ({error})") from error
    if not whole:
        raise ValueError(f"{file}: another file than the one that {MANIFEST} describes")
    found = _compared(file, seen, action, output)
    _tell(folder, found)
    return {"folder": str(folder), "check": found}


def _compared(file: Path, seen: Tensor, action: Tensor, output: Mapping[str, Any]) -> dict[str, Any]:
    """Return on how many observations a file decides otherwise than the policy did; ValueError if on any."""
    played = read_policy(file)(seen)
    if played.shape != action.shape:
        raise ValueError(f"{file}: acts in shape {tuple(played.shape[1:])}, not {tuple(action.shape[1:])}")
    width = torch.tensor(output["high"]) - torch.tensor(output["low"]) if "low" in output else None
    count = int(differing(action, played, width).sum())
    if count:
        raise ValueError(f"{file}: decides otherwise than the policy on {count:,} of {len(seen):,} observations")
    largest = float((action.double() - played.double()).abs().max())
    return {"observations": len(seen), "differing": count, "largest_difference": largest}


def _manifest(env: VecEnv, checkpoints: Mapping[str, Path], file: Path) -> dict[str, Any]:
    scenario, spec = env.scenario, env.scenario.action_spec
    states = {name: read_checkpoint(path) for name, path in checkpoints.items()}
    columns = scenario.columns() if isinstance(scenario, NamedColumns) else _numbered(env)
    bounds = {}
    if spec.dtype.is_floating_point:
        bounds = {"low": spec.space.low.tolist(), "high": spec.space.high.tolist()}
    shape, kind = list(spec.shape), str(spec.dtype).removeprefix("torch.")
    trained = next(iter(states.values()))
    return {
        "format": FORMAT,
        "file": file.name,
        "sha256": _digest(file),
        "vecenv_version": vecenv.__version__,
        "torch_version": torch.__version__,
        "task": scenario.name,
        "task_version": scenario.version,
        "checkpoints": {name: _digest(path) for name, path in checkpoints.items()},
        "input": {
            "name": INPUT,
            "dtype": "float32",
            "shape": ["batch", len(columns)],
            "columns": [column._asdict() for column in columns],
        },
        "output": {"name": OUTPUT, "dtype": kind, "shape": ["batch", *shape], **bounds},
        "trained_on": trained["scenario"].get("market"),
        "rules": trained["scenario"].get("config"),
        "recorded_on": scenario.metadata().get("market"),
        "results": _results(next(iter(checkpoints.values())).parent, checkpoints),
    }


def _results(folder: Path, names: Collection[str]) -> dict[str, Any] | None:
    """Return verdicts and figures of the policies' test, of a run that wrote them."""
    file = folder / RESULTS
    if not file.is_file():
        return None
    told = json.loads(file.read_text())
    agents = told.get("evaluation", {}).get("agents", {})
    return {"verdicts": told.get("verdicts"), "test": {name: agents[name] for name in names if name in agents}}


def _numbered(env: VecEnv) -> list[Column]:
    """Return columns by block and number, of a task that does not name them."""
    blocks = zip(env.observation_form.blocks, env.observation_form.sizes, strict=True)
    places = [f"block {name} [{place}]" for name, size in blocks for place in range(size)]
    return [Column(place, "as the task observes it") for place in places]


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _tell(folder: Path, found: Mapping[str, Any]) -> None:
    wide_console().print(
        f"{folder}: decides as the policy on all {found['observations']:,} recorded observations, actions within "
        f"{found['largest_difference']:.1g}",
        soft_wrap=True,
    )
