"""TorchRL's own wrapper, collector, advantages and loss learn from episodes that are played as one batch."""

import copy
import re
from functools import cache
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="chats of TorchRL need vecenv[language]")

from tensordict import TensorDictBase, set_list_to_stack
from torchrl.collectors.llm import LLMCollector
from torchrl.data import LazyStackStorage, ReplayBuffer, SamplerWithoutReplacement
from torchrl.data.llm import History
from torchrl.envs.llm.transforms import RetrieveLogProb
from torchrl.modules.llm import TransformersWrapper
from torchrl.objectives.llm import GRPOLoss, MCAdvantage
from transformers import LlamaConfig, LlamaForCausalLM

import vecenv
from tests.language.tiny import teach
from vecenv.adapters.torchrl import GroupChatEnv
from vecenv.core.env import VecEnv
from vecenv.language.config import LanguageConfig
from vecenv.language.tiny_config import TinyConfig
from vecenv.language.tiny_model import tiny_tokenizer
from vecenv.learn.group_episodes import EpisodeReward
from vecenv.text.door import TextDoor

TASK, DAYS, GROUPS, SIZE = "single_stock_costs", 3, 2, 4
ROWS = GROUPS * SIZE
PLANTED = {"market": "planted", "market_options": {"num_paths": 3, "num_days": 330}, "context": ("signal",)}
MARKET: dict[str, Any] = {**PLANTED, "days": DAYS}
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""The same text as TorchRL's own template of that name, which marks the answers too."""

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


@pytest.fixture(autouse=True)
def stacks():
    with set_list_to_stack(True):
        yield


def market_env(rows: int) -> VecEnv:
    return vecenv.make(TASK, rows, action="orders", compile=False, **MARKET)


@cache
def _talking():
    """Return a taught model whose conversations are ChatML, and its tokenizer."""
    env = market_env(8)
    texts = [*TextDoor(env).render(range(8)), *TextDoor(env).instructions(range(8)), "BUY 0.5", "BUY", "SELL", "HOLD"]
    tokenizer = tiny_tokenizer(texts, TinyConfig(vocabulary=400))
    tokenizer.add_special_tokens({"eos_token": "<|im_end|>", "additional_special_tokens": ["<|im_start|>"]})
    tokenizer.chat_template = CHATML
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    names = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id, "bos_token_id": None}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        sizes |= {"vocab_size": len(tokenizer), "initializer_range": 32**-0.5, "tie_word_embeddings": True}
        model = LlamaForCausalLM(LlamaConfig(**sizes, **names)).eval()
    teach(model, tokenizer, env, LanguageConfig(context_tokens=1000, answer_tokens=6, history_days=0))
    return model, tokenizer


def talking_policy(**settings: Any):
    model, tokenizer = _talking()
    model = copy.deepcopy(model)
    drawn = {"max_new_tokens": 6, "do_sample": True, "top_k": len(tokenizer)} | settings
    form = {"input_mode": "history", "chat_template_name": "chatml_format"}
    return model, tokenizer, TransformersWrapper(model, tokenizer=tokenizer, generate_kwargs=drawn, **form)


def answers_of(row: TensorDictBase) -> list[str]:
    full = row["history"].full
    return [content for role, content in zip(full.role, full.content, strict=True) if role == "assistant"]


def prices_of(row: TensorDictBase) -> list[str]:
    full = row["history"].full
    return re.findall(r"^[A-Z]+: Rs([\d,.]+) \(", "\n".join(full.content), re.MULTILINE)


def replayed_grades(rows: list[list[str]], seed: int, episode: int) -> torch.Tensor:
    """Grade the answers of all rows in an environment of their own."""
    env = market_env(ROWS)
    env.reset_groups(GROUPS, SIZE, seed)
    for _ in range(episode):
        env.advance(TextDoor(env).parse(["HOLD"] * ROWS, range(ROWS))[0])
        env.restart(torch.ones(ROWS, dtype=torch.bool))
    for day in range(DAYS):
        env.advance(TextDoor(env).parse([answers[day] for answers in rows], range(ROWS))[0])
    assert bool(env.rows.done.all())
    return env.grade()


@pytest.mark.nightly
@pytest.mark.parametrize("learned", ["turns", "episodes"])
def test_two_steps_of_its_loss(learned):
    """As its own recipe: by turns in tokens, or by the last turn's history, with the loss as it is."""
    model, tokenizer, policy = talking_policy()
    turns = learned == "turns"
    scores = TransformersWrapper(
        model, tokenizer=tokenizer, input_mode="tokens" if turns else "history", generate=False,
        chat_template_name="chatml_format",
    )  # fmt: skip
    count = ROWS * DAYS if turns else ROWS
    buffer = ReplayBuffer(
        storage=LazyStackStorage(count), sampler=SamplerWithoutReplacement(), batch_size=count // 2,
        transform=MCAdvantage(grpo_size=SIZE, trajectory_return="sum" if turns else None),
    )  # fmt: skip
    torch.manual_seed(0)
    env = GroupChatEnv(TASK, GROUPS, SIZE, seed=7, **MARKET)
    kept = {"yield_completed_trajectories": True} if turns else {"yield_only_last_steps": True}
    collector = LLMCollector(
        env, policy=policy, dialog_turns_per_batch=count, total_dialog_turns=-1, replay_buffer=buffer,
        postproc=torch.no_grad()(RetrieveLogProb(scores, assistant_only=False)), **kept,
    )  # fmt: skip
    loss_of = GRPOLoss(scores, masking_strategy="sft" if turns else "rlhf")
    loss_of.set_keys(sample_log_prob=("next", "log_probs", "full"))
    optimiser = torch.optim.Adam(model.parameters(), 1e-3)

    assert next(iter(collector)) is None and len(buffer) == count
    rows = buffer[:]
    # What the collector has kept, put in the order of the environment's rows.
    last = [row for row in rows.unbind(0) if bool(row["next", "done"])]
    by_group = sorted(last, key=lambda row: row["query"])
    assert [row["query"] for row in by_group] == ["7/0/0"] * SIZE + ["7/1/0"] * SIZE
    prices = [prices_of(row) for row in by_group]
    assert all(len(seen) == DAYS for seen in prices)
    assert all(seen == prices[row // SIZE * SIZE] for row, seen in enumerate(prices)) and prices[0] != prices[-1]
    rewards = torch.stack([row["next", "reward"].view(()) for row in by_group])
    assert torch.allclose(rewards, replayed_grades([answers_of(row) for row in by_group], 7, 0))
    assert len(set(rewards.tolist())) > 2
    assert not any(bool(row["next", "reward"].any()) for row in rows.unbind(0) if not bool(row["next", "done"]))
    # Centred and scaled among the members of each group, the same on all turns of an episode.
    advantage = torch.stack([row["advantage"].view(()) for row in by_group]).view(GROUPS, SIZE)
    groups = rewards.view(GROUPS, SIZE)
    centred = (groups - groups.mean(1, keepdim=True)) / groups.std(1, keepdim=True).clamp(min=1e-6)
    assert torch.allclose(advantage, centred, atol=1e-5)
    assert advantage.mean(1).tolist() == pytest.approx([0.0, 0.0], abs=1e-5)
    if turns:
        whole = [row["advantage"].view(()) for row in rows.unbind(0)]
        assert float(torch.stack(whole).sum()) == pytest.approx(DAYS * float(advantage.sum()), abs=1e-4)

    # The loss is over the model's own tokens alone, each once.
    seen = rows.copy()
    dist = scores._get_sft_dist(seen) if turns else scores._get_rlhf_dist(seen)
    tokens = seen.get(("tokens", "full"), as_padded_tensor=True, padding_side="left", padding_value=-100)
    learned_tokens = [row[mask] for row, mask in zip(tokens, dist.mask, strict=True)]
    if turns:
        drawn = rows.get(("tokens", "response"), as_list=True)
        assert all(map(torch.equal, learned_tokens, drawn))
    else:
        said = [answers_of(row) for row in rows.unbind(0)]
        assert [tokenizer.decode(row) for row in learned_tokens] == ["".join(answers) for answers in said]
        encoded = [sum(len(ids) for ids in tokenizer(answers)["input_ids"]) for answers in said]
        assert [len(row) for row in learned_tokens] == encoded

    steps = []
    for batch in buffer:
        before = [parameter.detach().clone() for parameter in model.parameters()]
        loss = loss_of(batch)
        (loss.loss_objective + loss.loss_entropy).mean().backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        assert bool(torch.isfinite(loss.loss_objective).all()) and bool(torch.isfinite(norm)) and norm > 0
        assert all(parameter.grad is not None for parameter in model.parameters())
        optimiser.step()
        optimiser.zero_grad()
        assert not all(map(torch.equal, before, model.parameters()))
        steps.append(loss)
    assert len(steps) == 2
    # Nothing has changed before the first step, so the scores are those of the loss; after it they differ.
    assert float(steps[0].kl_approx) == pytest.approx(0.0, abs=1e-6) and float(steps[0].ESS) == pytest.approx(1.0)
    assert float(steps[0].clip_fraction) == 0.0 and float(steps[1].ESS) < 1.0

    buffer.empty()
    next(collector.iterator())
    again = [row for row in buffer[:].unbind(0) if bool(row["next", "done"])]
    assert {row["query"] for row in again} == {"7/0/1", "7/1/1"}
    assert prices_of(min(again, key=lambda row: row["query"])) != prices[0]


def step_with(env: GroupChatEnv, rows: TensorDictBase, answers: list[str], extra: bool = False):
    """Answer as a policy does: in the full history, of which a wrapper may fill up with messages of no role."""
    said = [[answer, ""] if extra else [answer] for answer in answers]
    role = [["assistant", "<none>"] if extra else ["assistant"] for _ in answers]
    answer = History(role=role, content=said, batch_size=(len(answers), len(said[0])))
    rows["history"].full = rows["history"].prompt.extend(answer, inplace=False, dim=-1)
    return env.step_and_maybe_reset(rows)


def test_what_an_episode_is_worth_is_paid_at_its_end():
    worth = EpisodeReward(grade=1.0, total_return=5.0, steps=2.0, invalid=0.5)
    env, other = GroupChatEnv(TASK, 1, 3, worth, **MARKET), market_env(3)
    other.reset_groups(1, 3, 0)
    answers, steps, rows = ["BUY 0.5", "gibberish", "HOLD"], torch.zeros(3), env.reset()
    for day in range(DAYS):
        assert rows["history"].prompt.content[0][-1] == TextDoor(other).render([0])[0]
        played, rows = step_with(env, rows, answers, extra=day == 0)
        steps += other.advance(TextDoor(other).parse(answers, range(3))[0])
        assert played["next", "done"].view(-1).tolist() == [day == DAYS - 1] * 3
        roles = played["next", "history"].prompt.role
        assert [list(row) for row in roles] == [["system", "user", *["assistant", "user"] * (day + 1)]] * 3
        if day < DAYS - 1:
            assert not played["next", "reward"].any()
    info = other.info()
    expected = other.grade() + 5.0 * (info["portfolio_value"] / info["start_value"] - 1.0) + 2.0 * steps
    expected -= 0.5 * torch.tensor([0.0, 1.0, 0.0])
    assert torch.allclose(played["next", "reward"].view(-1), expected.float(), atol=1e-6)
    assert played["next", "truncated"].all() and not played["next", "terminated"].any()
    assert list(rows["query"]) == ["0/0/1"] * 3 and not rows["done"].any()
    # The next episode begins with nothing earned.
    for _ in range(DAYS):
        played, rows = step_with(env, rows, ["HOLD"] * 3)
    other.restart(torch.ones(3, dtype=torch.bool))
    held = sum(other.advance(TextDoor(other).parse(["HOLD"] * 3, range(3))[0]) for _ in range(DAYS))
    assert torch.allclose(played["next", "reward"].view(-1), (other.grade() + 2.0 * held).float(), atol=1e-6)


def test_rows_wait_for_those_that_end_later_and_seeds_name_episodes():
    env = GroupChatEnv(TASK, 1, 2, **MARKET)
    rows = env.reset()
    _, rows = step_with(env, rows, ["HOLD", "HOLD"])
    # As if the rules had ended the first.
    env.vec_env.rows.ended[0] = 1
    cash = env.vec_env.state.cash.clone()
    played, rows = step_with(env, rows, ["BUY", "BUY"])
    assert not played["next", "done"].any() and not played["next", "reward"].any()
    assert env.vec_env.state.cash[0] == cash[0] and env.vec_env.state.cash[1] < cash[1]
    grade = env.vec_env.grade()[0]
    played, rows = step_with(env, rows, ["SELL", "HOLD"])
    assert played["next", "done"].all() and played["next", "reward"][0].item() == pytest.approx(float(grade))
    assert played["next", "terminated"].view(-1).tolist() == [True, False]
    # Seeds name episodes; what it cannot play is refused.
    env = GroupChatEnv(TASK, GROUPS, SIZE, seed=3, **MARKET)
    assert env.reward_spec.shape == (ROWS, 1, 1)
    flags = {name: (tuple(spec.shape), spec.dtype) for name, spec in env.full_done_spec.items()}
    assert flags == dict.fromkeys(("done", "terminated", "truncated"), ((ROWS, 1), torch.bool))
    first = env.reset()
    env.set_seed(3)
    same = env.reset()
    env.set_seed(4)
    other = env.reset()
    texts = [[list(row) for row in rows["history"].prompt.content] for rows in (first, same, other)]
    assert texts[0] == texts[1] != texts[2]
    assert [rows["query"][0] for rows in (first, same, other)] == ["3/0/0", "3/0/0", "4/0/0"]
    with pytest.raises(ValueError, match="rows of a chat begin together"):
        env.reset(other.set("_reset", torch.arange(ROWS).unsqueeze(1) < 1))
    for groups, size in ((0, 4), (4, 0)):
        with pytest.raises(ValueError, match=f"{groups} groups of {size} have no rows"):
            GroupChatEnv(TASK, groups, size, **MARKET)
