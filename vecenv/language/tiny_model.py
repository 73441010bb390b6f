"""A tiny causal language model without downloads, to test in minutes on a laptop that learning works."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from vecenv.language.tiny_config import TinyConfig

PAD, SYSTEM, USER, ASSISTANT, END = "<|pad|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"

TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message.role + '|>' + message.content + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def tiny_tokenizer(texts: Iterable[str], config: TinyConfig) -> PreTrainedTokenizerFast:
    """Return a byte-level tokenizer trained on texts, for any text; each digit is a token, others may span words."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            # Signs join the text before the number; lines and fields are split.
            pre_tokenizers.Split(Regex(r"[0-9]|\n| \| "), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocabulary,
        special_tokens=[PAD, SYSTEM, USER, ASSISTANT, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, eos_token=END, additional_special_tokens=[SYSTEM, USER, ASSISTANT]
    )
    fast.chat_template = TEMPLATE
    return fast


def tiny_model(
    texts: Iterable[str], config: TinyConfig, seed: int, device: torch.device | str = "cpu"
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Return a Llama (Touvron et al., arXiv 2302.13971, 2023) with random weights, and its tokenizer."""
    tokenizer = tiny_tokenizer(texts, config)
    settings = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=config.hidden,
        intermediate_size=8 * config.hidden // 3,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        max_position_embeddings=config.longest,
        tie_word_embeddings=True,
        initializer_range=config.hidden**-0.5,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(settings)
    model.to(device).eval()  # type: ignore[arg-type]  # typed as another method
    return model, tokenizer
