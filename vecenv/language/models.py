"""Causal language models from a folder or the Hugging Face hub, with adapters if asked for, and back to a folder."""

from __future__ import annotations

import copy
import errno
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from vecenv.language.chat import ChatFormat
from vecenv.language.hub import found_model


def load_model(
    place: str, device: torch.device | str = "cpu", lora_rank: int = 0
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Return a causal language model, ready to answer, and its tokenizer.

    Weights are float32 so that small steps of training are not lost in rounding; on a GPU with adapters, where they
    are not trained, bfloat16.

    Args:
        place: folder, or name on the hub.
        device: where the model lives.
        lora_rank: rank of adapters that are trained in its place; 0 for none.

    Raises:
        ValueError: there is no such model, it is no causal language model, or it is on a hub that cannot be reached.
        ImportError: adapters need ``peft``.
    """
    device = torch.device(device)
    precision = torch.bfloat16 if device.type == "cuda" and lora_rank > 0 else torch.float32
    found = found_model(place)
    try:
        with _no_bars():
            tokenizer = AutoTokenizer.from_pretrained(found)
            model = AutoModelForCausalLM.from_pretrained(found, dtype=precision)
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(f"{place}: no causal language model with a tokenizer could be loaded: {reason}") from error
    model.to(device).eval()  # type: ignore[arg-type]  # typed as another method
    return (with_adapters(model, lora_rank) if lora_rank else model), tokenizer


def with_adapters(model: PreTrainedModel, rank: int) -> PreTrainedModel:
    """Return the model with low-rank adapters on all its linear layers, which alone are trained.

    Hu et al., "LoRA", arXiv 2106.09685, 2021, with alpha twice the rank and without dropout.

    Raises:
        ImportError: ``peft`` is not installed.
    """
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise ImportError("adapters need peft: pip install 'vecenv[language]'") from error
    settings = LoraConfig(
        r=rank, lora_alpha=2 * rank, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adapted = get_peft_model(model, settings)
    return adapted.eval()  # type: ignore[return-value]  # it behaves as the model that it holds


def chat_format(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, thinking: bool = False) -> ChatFormat:
    """Return the form of a model's conversations, with all tokens that end its answers."""
    ends = None if model.generation_config is None else model.generation_config.eos_token_id
    stop = [] if ends is None else [ends] if isinstance(ends, int) else list(ends)
    return ChatFormat(tokenizer, thinking, stop)


def longest_context(model: PreTrainedModel) -> int | None:
    """Return how many tokens the model was made for, None if it does not say."""
    return getattr(model.config.get_text_config(), "max_position_embeddings", None)


def frozen_copy(model: PreTrainedModel) -> PreTrainedModel:
    """Return a copy that is never trained."""
    return copy.deepcopy(model).requires_grad_(False)


@contextmanager
def without_adapters(model: PreTrainedModel) -> Iterator[PreTrainedModel]:
    """Give the model as it was before it had adapters."""
    with model.disable_adapter():  # type: ignore[operator]
        yield model


def save_model(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write a model with its tokenizer, adapters merged into it, as `load_model` and any other library read it.

    A model that was there stays until the new one is whole.

    Raises:
        OSError: it cannot be written.
    """
    if hasattr(model, "merge_and_unload"):
        model = copy.deepcopy(model).merge_and_unload()  # type: ignore[operator]
    partial = folder / ".partial"
    # Of a process that was killed.
    shutil.rmtree(partial, ignore_errors=True)
    try:
        with _no_bars():
            model.save_pretrained(partial)
            tokenizer.save_pretrained(partial)
        for path in partial.iterdir():
            path.replace(folder / path.name)
    except SafetensorError as error:
        # It tells the system's error in words alone.
        raise OSError(errno.ENOSPC if "No space" in str(error) else errno.EIO, str(error)) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def _no_bars() -> Iterator[None]:
    """Keep progress bars of a moment from a command's own output."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
