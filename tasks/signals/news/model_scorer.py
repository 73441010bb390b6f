"""Language models that score texts: causal ones that are asked, and classifiers of sentiment."""

from __future__ import annotations

import hashlib
from pathlib import Path

from transformers import AutoConfig, PretrainedConfig

from vecenv.language.hub import found_model
from vecenv.language.models import chat_format, load_model
from vecenv.tasks.signals.news.classifier_scorer import ClassifierScorer, load_classifier
from vecenv.tasks.signals.news.prompt_scorer import PromptScorer


def load_scorer(place: str, batch_size: int, device: str) -> PromptScorer | ClassifierScorer:
    """Return the scorer of a model, in a folder or on the hub; its configuration tells whether it is a classifier.

    Raises ValueError if there is no such model, or it cannot score texts.
    """
    found = found_model(place)
    try:
        config = AutoConfig.from_pretrained(found)
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(f"{place}: no language model could be loaded: {reason}") from error
    name = f"{place} {_version(found, config)}"
    if any(kind.endswith("ForSequenceClassification") for kind in config.architectures or ()):
        return ClassifierScorer(*load_classifier(place, device), name, batch_size)
    model, tokenizer = load_model(place, device)
    return PromptScorer(model, chat_format(model, tokenizer), name, batch_size)


def _version(found: str, config: PretrainedConfig) -> str:
    """Return a digest of a folder's files, or the commit of a model of the hub."""
    if not Path(found).is_dir():
        return str(getattr(config, "_commit_hash", None))
    digest = hashlib.sha256()
    for path in sorted(path for path in Path(found).iterdir() if path.is_file()):
        with path.open("rb") as file:
            digest.update(path.name.encode() + hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:12]
