"""GRPO of language models: gradients of the shared objective, whatever is computed at once or where, and runs."""

import math
from dataclasses import replace

import pytest
import torch

import vecenv
from tests.language.tiny import ALONE, DAYS, signal_env, small_chat, small_model, talking_model
from vecenv.language.config import LanguageConfig
from vecenv.language.conversation import Segment
from vecenv.language.grpo import LanguageGRPO
from vecenv.language.log_probs import TokenTable, counted_tokens, segment_log_probs
from vecenv.language.models import with_adapters
from vecenv.learn.evaluation import Agent
from vecenv.learn.group_episodes import EpisodeReward
from vecenv.learn.grpo import group_losses, step_credit
from vecenv.learn.runs import update_seed
from vecenv.learn.settings.grpo import VARIANTS
from vecenv.text.door import TextDoor

GROUP, ROWS = 4, 8
RETURN = EpisodeReward(grade=0.0, total_return=1.0, steps=0.1, invalid=0.02)
CONFIG = replace(ALONE, minibatches=2, learning_rate=1e-3, total_frames=3 * DAYS * ROWS, reward=RETURN)
MISSING = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
GROWING = replace(CONFIG, history_days=None, context_tokens=900)


def learner(config: LanguageConfig = CONFIG, seed: int = 0, rows: int = ROWS, others: Agent | None = None, **rules):
    model, _ = talking_model() if seed == 0 else small_model(seed)
    return LanguageGRPO(signal_env(rows, **rules), model, small_chat(), config, GROUP, others)


def weights(one: LanguageGRPO) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in one.parameters]


@pytest.mark.parametrize(
    ("variant", "config"),
    [
        ("grpo", CONFIG),
        *(pytest.param(each, CONFIG, marks=pytest.mark.assembly) for each in list(VARIANTS)[1:]),
        pytest.param("grpo", GROWING, marks=pytest.mark.assembly),
    ],
)
def test_gradients_are_those_of_all_episodes_at_once(variant, config, monkeypatch):
    """By brute force: each segment alone without padding, one table for all episodes, the shared loss."""
    one = learner(replace(config, variant=variant, kl_coef=0.05, temperature=0.8))
    with torch.no_grad():
        # Away from the policy that draws, so that ratios are no ones.
        (episodes,) = one.collect()
        for parameter in one.parameters:
            parameter.add_(0.04 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(5)))
    # A group that counts for nothing, as one without spread that could not be filled.
    episodes.mask[:, 6] = False
    credit = step_credit(episodes, one.config, GROUP, 0.5)
    reference = one._reference_log_probs(episodes.said)
    minibatch, tables = [5, 0, 3, 6], torch.zeros(4, 4, 6 * DAYS)
    mask = torch.zeros(4, 6 * DAYS, dtype=torch.bool)
    for place, row in enumerate(minibatch):
        said = episodes.said[row]
        alone = torch.cat([segment_log_probs(one.model, [part], 0, 0.8) for part in said])
        turns = torch.tensor([turn for part in said for turn in part.turn])
        old = torch.tensor([value for part in said for value in part.log_prob])
        tables[:, place, : len(turns)] = torch.stack([alone, old, credit[turns, row], reference[row]])
        mask[place, : len(turns)] = episodes.mask[turns, row]
    losses = group_losses(*tables[:3], mask, one.config.rules.objective, 6 * DAYS, tables[3])
    one.optimiser.zero_grad()
    (losses.policy + 0.05 * losses.reference_kl).backward()
    expected = [parameter.grad.clone() for parameter in one.parameters]
    assert bool(losses.approx_kl > 1e-3) and bool(losses.reference_kl > 1e-3)
    for at_once in (1, 2_000, 10**6):
        one.config = replace(one.config, tokens_at_once=at_once)
        one.optimiser.zero_grad()
        sums = one._gradients(episodes, minibatch, credit, reference)
        assert torch.allclose(sums[:4], torch.stack(losses).detach(), rtol=1e-3, atol=1e-6)
        for own, wanted in zip(one.parameters, expected, strict=True):
            assert torch.allclose(own.grad, wanted, rtol=1e-3, atol=2e-4 * float(wanted.abs().max()) + 1e-7)
    # Steps take shuffled minibatches, clip their gradients, and do not let weights decay.
    steps, generator = [], torch.Generator().manual_seed(update_seed(0, 0))
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", lambda _, most: steps.append(most))
    monkeypatch.setattr(one, "_gradients", lambda *given: steps.append(given[1]) or torch.zeros(6))
    one._learn([episodes])
    first, second = torch.randperm(ROWS, generator=generator).view(2, -1).tolist()
    assert steps == [first, 1.0, second, 1.0] and one.optimiser.defaults["weight_decay"] == 0.0


def test_tokens_are_credited_by_day_whichever_turn_they_are_of():
    """With tools a day has several answers; a day that counts for nothing takes all of them along."""
    begun = Segment([9] * 8, [2, 3, 6], [0, 0, 1], [0, 0, 0], [-1.0, -2.0, -3.0])
    first = [begun, Segment([9] * 4, [3], [2], [1], [-4.0])]
    two = [Segment([9] * 5, [4], [0], [0], [-5.0])]
    table = TokenTable([first, two], torch.device("cpu"))
    assert [days.tolist() for days in table.days] == [[0, 0, 0, 1], [0]]
    assert table.spread(torch.tensor(table.log_prob)).tolist() == [[-1.0, -2.0, -3.0, -4.0], [-5.0, 0.0, 0.0, 0.0]]
    assert counted_tokens(first, torch.tensor([True, False, True])) == 3
    assert counted_tokens(first, torch.tensor([False, True, True])) == 1
    # Answers are measured: two of three end; the third is cut off.
    one = learner(replace(CONFIG, tools=("account",)))
    end = min(one.chat.stop)
    said = [
        [Segment([9, 9, end, 9, end], [1, 2, 4], [0, 0, 1], [0, 0, 1], [0.0] * 3)],
        [Segment([9, 9], [1], [0], [0], [0.0])],
    ]
    one.agents[0].calls.update(days=8, invalid=2, calls=4, faults=1)
    told = one._answers([type("Episodes", (), {"said": said})])
    expected = {"answer_tokens": 4 / 3, "cut_off": 1 / 3, "invalid_answers": 0.25}
    assert told == expected | {"tool_calls": 0.5, "tool_faults": 0.25}


def test_episodes_that_take_the_place_of_others_bring_what_was_said():
    one = learner()
    (first,), (second,) = one.collect(), one.collect()
    kept, reward = [list(said) for said in first.said], first.reward.clone()
    first.put(torch.tensor([1, 5]), second, torch.tensor([0, 3]))
    others = {1: 0, 5: 3}
    for row in range(ROWS):
        assert first.said[row] == (second.said[others[row]] if row in others else kept[row])
        assert torch.equal(first.reward[:, row], second.reward[:, others[row]] if row in others else reward[:, row])
    assert kept[1] != second.said[0]


def test_a_state_of_other_forms_is_refused_and_its_own_goes_on_bit_for_bit():
    config = replace(CONFIG, variant="dapo", kl_coef=0.05, minibatches=1, refills=1, renew_reference=1)
    one = learner(config)
    one.update()
    whole = one.state_dict()
    name = next(iter(whole["model"]))
    for fault, words in (
        ({"model": whole["model"] | {name: torch.zeros(3)}}, rf"its state\.model\.{name} is float32 of shape"),
        ({"model": {}}, "the checkpoint is of another model"),
        ({"group_size": 2}, "the checkpoint was trained with groups of 2"),
        ({"reference": {}}, r"its state\.reference lacks"),
        ({"rollouts": None}, r"its state\.rollouts is nothing instead of a number"),
        ({"optimiser": None}, "its optimiser is nothing instead of dict"),
        ({"config": {}}, "the checkpoint was trained with other"),
        ({"environment": one.env.state_dict() | {"seed": torch.zeros(2)}}, r"its state\.environment\.seed"),
    ):
        with pytest.raises(ValueError, match=words):
            one.load_state_dict(whole | fault)
    other = learner(config, seed=3)
    other.load_state_dict(whole)
    assert all(map(torch.equal, weights(other), weights(one))) and other.update_number == 1
    assert other.rollouts == one.rollouts in (1, 2)
    assert all(map(torch.equal, other.reference.parameters(), one.reference.parameters()))
    # It goes on bit for bit.
    told, again = one.update(), other.update()
    for name in told.keys() - {"samples_per_second", "rollout_share"}:
        assert str(again[name]) == str(told[name]), name  # NaN too
    assert all(map(torch.equal, weights(other), weights(one)))
    assert all(map(torch.equal, one.reference.parameters(), whole["model"].values())), "renewed before the update"
    whole["optimiser"]["state"][0]["exp_avg"] = torch.zeros(3)
    with pytest.raises(ValueError, match=r"its optimiser\.state\.0\.exp_avg is float32 of shape \(3,\)"):
        one.load_state_dict(whole)


def test_language_agents_among_rows_of_a_policy():
    """The first group is the model's; what the others do is theirs, and changes nothing for it."""
    few = replace(CONFIG, groups=1, minibatches=1)
    alone = learner(replace(CONFIG, minibatches=1), rows=GROUP)
    among = learner(few, rows=64, others=signal_env(1).scenario.task.agents["random"]())
    (own,), (mixed,) = alone.collect(), among.collect()
    assert mixed.said == own.said and torch.equal(mixed.reward, own.reward)
    state = among.env.state
    assert bool(among.env.rows.done.all()) and len(state.portfolio_value[GROUP:].unique()) > 20
    assert among.update()["frames"] == GROUP * DAYS
    with pytest.raises(ValueError, match="an agent for the other groups is needed exactly"):
        learner(few, rows=64)
    with pytest.raises(ValueError, match="cannot play 20 of 16 groups"):
        learner(replace(few, groups=20), rows=64, others=among.groups.others)


@pytest.mark.parametrize("rank", [0, 2])
def test_first_ratios_are_one_prices_of_a_group_the_same_and_adapters_leave_the_model(rank):
    model, _ = talking_model()
    before = {name: tensor.clone() for name, tensor in model.named_parameters()}
    # The same at any temperature, with conversations that begin anew, or with adapters.
    config = replace(CONFIG if rank else GROWING, lora_rank=rank, kl_coef=0.1, minibatches=1, temperature=0.6)
    one = LanguageGRPO(signal_env(ROWS), with_adapters(model, 2) if rank else model, small_chat(), config, GROUP)
    assert rank or not any(parameter.requires_grad for parameter in one.reference.parameters())
    assert (one.reference is None) == bool(rank) and (sum(map(torch.numel, one.parameters)) < 12_000) == bool(rank)
    first, second = one.update(), one.update()
    for name in ("approx_kl", "clip_fraction", "reference_kl"):
        assert first[name] == pytest.approx(0, abs=1e-7)
    assert first["frames"] == DAYS * ROWS and 1 <= first["answer_tokens"] <= 6 and 0 <= first["cut_off"] <= 1
    assert second["reference_kl"] > 0
    for numbers in (one.env.state.path, one.env.state.start_day):
        assert bool((numbers.view(-1, GROUP) == numbers.view(-1, GROUP)[:, :1]).all())
    named = {
        name.replace("base_model.model.", "").replace("base_layer.", ""): tensor
        for name, tensor in one.model.named_parameters()
    }
    assert all(torch.equal(named[name], tensor) for name, tensor in before.items()) == bool(rank)


def test_what_cannot_be_learned_is_refused():
    with pytest.raises(ValueError, match=r"context_tokens 9000 are more than the model's 8192"):
        learner(replace(CONFIG, context_tokens=9000))
    with pytest.raises(ValueError, match="group_size must be at least 2"):
        learner(rows=6)
    options = {"market_options": {"num_paths": 4, "num_days": 330}, "compile": False}
    mixed = vecenv.make("curriculum", 8, market="synthetic", action="orders", **options)
    silent = vecenv.make("stock_trading", 8, market="planted", compile=False)
    for env, words in ((silent, "has no text"), (mixed, "changes its rules by row")):
        with pytest.raises(ValueError, match=words):
            LanguageGRPO(env, small_model()[0], small_chat(), CONFIG, GROUP)
    for name, value, words in (
        ("temperature", 0.0, "positive, got 0"),
        ("tokens_at_once", 0, "at least 1, got 0"),
        ("lora_rank", -1, "not be negative, got -1"),
        ("groups", 0, "at least 1, got 0"),
    ):
        with pytest.raises(ValueError, match=f"{name} must (be )?{words}"):
            replace(CONFIG, **{name: value})
    with pytest.raises(ValueError, match="renew_reference needs lora_rank 0"):
        replace(CONFIG, renew_reference=1, lora_rank=2)


@pytest.mark.parametrize(
    "device", [pytest.param("cpu", marks=pytest.mark.assembly), pytest.param("cuda", marks=[pytest.mark.gpu, MISSING])]
)
def test_accounts_likelihoods_and_an_update(device):
    model, _ = talking_model()
    one = LanguageGRPO(signal_env(ROWS, device=device), model.to(device), small_chat(), CONFIG, GROUP)
    env, other = one.env, signal_env(ROWS)
    for each in (env, other):
        each.reset_groups(ROWS // GROUP, GROUP, 3)
    while not bool(env.rows.done.all()):
        orders = one.agents[0].act(env)
        rewards = env.advance(orders), other.advance(TextDoor(other).parse(one.agents[0].said, range(ROWS))[0])
        assert torch.allclose(rewards[0].cpu(), rewards[1], atol=1e-6)
        assert TextDoor(env).render(range(ROWS)) == TextDoor(other).render(range(ROWS))
    assert torch.equal(env.state.cash.cpu(), other.state.cash)
    with torch.no_grad():
        for said in one.collect()[0].said:
            told = torch.tensor([value for part in said for value in part.log_prob])
            found = torch.cat([segment_log_probs(one.model, [part], 0, 1.0) for part in said]).float().cpu()
            # A GPU multiplies in bfloat16, which has eight bits.
            assert torch.allclose(told, found, atol=1e-4 if device == "cpu" else 0.1)
    before = [parameter.detach().clone() for parameter in one.parameters]
    # Few episodes have no interval.
    assert all(math.isfinite(value) for name, value in one.update().items() if not name.endswith(("_low", "_high")))
    assert all(parameter.device.type == device for parameter in one.parameters)
    assert not all(map(torch.equal, before, one.parameters))
