"""A tiny model that knows the words of a tier but has learned nothing, and environments whose signal it is shown."""

import copy
from functools import cache

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import vecenv
from vecenv.core.env import VecEnv
from vecenv.language.chat import ChatFormat
from vecenv.language.config import LanguageConfig
from vecenv.language.models import chat_format
from vecenv.language.supervised import SupervisedConfig
from vecenv.language.supervised_training import fine_tune, segments_of
from vecenv.language.tiny_config import TinyConfig
from vecenv.language.tiny_model import tiny_model
from vecenv.text.door import TextDoor

SMALL = TinyConfig(hidden=32, layers=2, heads=2, vocabulary=400)
ALONE = LanguageConfig(context_tokens=700, answer_tokens=6, history_days=0)
DAYS = 4


def signal_env(num_envs: int, task: str = "single_stock_costs", seed: int = 0, **rules: object) -> VecEnv:
    options = {"num_paths": 4, "num_days": 330}
    rules = {"context": ("signal",), "action": "orders", "days": DAYS} | rules
    return vecenv.make(task, num_envs, market="planted", market_options=options, compile=False, seed=seed, **rules)


@cache
def words() -> tuple[str, ...]:
    env = signal_env(32)
    return (*TextDoor(env).render(range(32)), *TextDoor(env).instructions([0]), "BUY 0.5", "SELL", "HOLD")


def small_model(seed: int = 0, scale: float = 1.0):
    """Return model and tokenizer; larger weights make likelihoods differ more."""
    model, tokenizer = tiny_model(words(), SMALL, seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(scale)
    return model, tokenizer


def small_chat() -> ChatFormat:
    return chat_format(*small_model())


def teach(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, env: VecEnv, config: LanguageConfig) -> None:
    """Teach a model to answer with some order or other, whatever it is shown."""
    count, roles = env.num_envs, ("system", "user", "assistant")
    answers = ["BUY 0.5", "BUY", "SELL", "HOLD"] * (count // 4)
    told = zip(TextDoor(env).instructions(range(count)), TextDoor(env).render(range(count)), answers, strict=True)
    messages = [[{"role": role, "content": text} for role, text in zip(roles, day, strict=True)] for day in told]
    chat = chat_format(model, tokenizer)
    training = SupervisedConfig(epochs=12, batch_size=count // 2, learning_rate=1e-2, test_fraction=0.0)
    fine_tune(model, segments_of(messages, chat, config), chat.pad, training)


@cache
def _talking():
    model, tokenizer = small_model()
    teach(model, tokenizer, signal_env(32), ALONE)
    return model, tokenizer


def talking_model():
    """Return a model whose answers are mostly valid orders, at random, and its tokenizer."""
    return copy.deepcopy(_talking())
