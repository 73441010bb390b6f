"""TRL's own trainer learns from episodes that are played as one batch."""

import pytest
import torch

pytest.importorskip("trl", reason="the door to TRL needs vecenv[trl]")

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from tests.language.tiny import ALONE, DAYS, talking_model
from vecenv.adapters.trl import EpisodeRollouts, episode_reward
from vecenv.language.config import AnswerConfig
from vecenv.language.conversation import Segment
from vecenv.language.log_probs import segment_log_probs
from vecenv.learn.group_episodes import EpisodeReward

MARKET = {"market": "planted", "market_options": {"num_paths": 4, "num_days": 330}, "context": ("signal",)}
ASKED = AnswerConfig(context_tokens=3000, answer_tokens=6)
GROUP = 4


def rollouts_of(config: AnswerConfig = ASKED, **options: object) -> EpisodeRollouts:
    worth = EpisodeReward(grade=1.0, total_return=5.0, invalid=0.5)
    return EpisodeRollouts("single_stock_costs", config, worth, days=DAYS, **MARKET, **options)


def trainer_of(rollouts: EpisodeRollouts, folder: object, dataset: Dataset | None = None, **settings: object):
    model, tokenizer = talking_model()
    config = GRPOConfig(
        output_dir=str(folder), per_device_train_batch_size=2 * GROUP, num_generations=GROUP, max_steps=2,
        learning_rate=1e-3, report_to=[], use_cpu=True, bf16=False, logging_steps=1, save_strategy="no",
        disable_tqdm=True, max_completion_length=3000, **settings,
    )  # fmt: skip
    return GRPOTrainer(
        model, [episode_reward], config, train_dataset=dataset or rollouts.dataset(8), processing_class=tokenizer,
        rollout_func=rollouts,
    )  # fmt: skip


@pytest.mark.nightly
def test_two_steps_of_its_trainer(tmp_path):
    rollouts = rollouts_of()
    trainer = trainer_of(rollouts, tmp_path)
    before = [parameter.detach().clone() for parameter in trainer.model.parameters()]
    trainer.train()
    assert not all(map(torch.equal, before, trainer.model.parameters()))
    logs = [log for log in trainer.state.log_history if "rewards/episode_reward/mean" in log]
    assert len(logs) == 2 and rollouts.rollouts == 2
    assert all(log["reward"] == pytest.approx(log["rewards/episode_reward/mean"]) for log in logs)
    assert any(log["reward_std"] > 0 for log in logs)
    # Its completions are episodes, of which it counts the model's own tokens alone.
    assert all(DAYS <= log["completions/mean_length"] <= 6 * DAYS for log in logs)


@pytest.mark.nightly
def test_a_rollout_is_what_the_model_saw_said_and_earned(tmp_path):
    rollouts = rollouts_of()
    trainer = trainer_of(rollouts, tmp_path, temperature=0.9)
    trainer.model.train()
    told = rollouts(["Episode 5"] * GROUP + ["Episode 2"] * GROUP, trainer)
    assert told["prompt_ids"][:GROUP] == [told["prompt_ids"][0]] * GROUP
    assert told["prompt_ids"][GROUP:] == [told["prompt_ids"][GROUP]] * GROUP
    assert told["prompt_ids"][0] != told["prompt_ids"][GROUP]
    env, decode = rollouts._kept[1].env, trainer.processing_class.decode
    assert torch.equal(env.start_ids, torch.tensor([5] * GROUP + [2] * GROUP))
    expected = env.grade().double() + 5.0 * (env.info()["portfolio_value"] / env.info()["start_value"] - 1).double()
    gate = 0.5 * (env.info()["invalid_actions"] > 0).double()
    assert told["episode_reward"] == pytest.approx((expected - gate).tolist())
    assert told["grade"] == pytest.approx(env.grade().tolist())
    columns = (told[name] for name in ("prompt_ids", "completion_ids", "logprobs", "env_mask"))
    for prompt, completion, log_prob, mask in zip(*columns, strict=True):
        assert len(completion) == len(log_prob) == len(mask) and mask[0] == 1
        text = decode(completion)
        assert text.count("<|user|>Day ") == DAYS - 1 and decode(prompt).endswith("<|assistant|>")
        drawn = [len(prompt) + place for place, own in enumerate(mask) if own]
        segment = Segment([*prompt, *completion], drawn, drawn, drawn)
        with torch.no_grad():
            again = segment_log_probs(trainer.model, [segment], 0, 0.9)
        own, others = ([value for value, said in zip(log_prob, mask, strict=True) if said == kind] for kind in (1, 0))
        assert again.tolist() == pytest.approx(own, abs=1e-4) and not any(others)
    assert told["completion_ids"][0] != told["completion_ids"][1]
    again = rollouts(["Episode 5"] * 8, trainer)
    assert again["prompt_ids"][0] != told["prompt_ids"][0]
    assert trainer.model.training


@pytest.mark.nightly
def test_processes_share_starts_and_draw_apart(tmp_path):
    """The second of two processes, which a group may be split over, has rows of other names."""
    trainer = trainer_of(rollouts_of(), tmp_path)
    told = []
    for process in (0, 1):
        rollouts = rollouts_of()
        env = rollouts._groups(4, process, torch.device("cpu")).env
        assert env.env_ids.tolist() == [4 * process + row for row in range(4)]
        # What follows asks for the environment of the trainer's only process, which has as many rows.
        told.append(rollouts(["Episode 5"] * 4, trainer))
        assert rollouts._kept[1].env is env
    assert told[0]["prompt_ids"] == told[1]["prompt_ids"]
    assert told[0]["completion_ids"] != told[1]["completion_ids"]


@pytest.mark.nightly
def test_what_it_cannot_play_is_refused(tmp_path):
    rollouts = rollouts_of()
    trainer = trainer_of(rollouts, tmp_path)
    with pytest.raises(ValueError, match="prompt 'What is a stock' names no episode"):
        rollouts(["What is a stock"], trainer)
    with pytest.raises(ValueError, match="an episode does not fit into context_tokens 700"):
        rollouts_of(ALONE)(["Episode 0"] * 2, trainer)
