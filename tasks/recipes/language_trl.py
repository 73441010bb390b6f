"""A language model by TRL's GRPOTrainer, which generates in our episodes (extra `trl`)."""

import sys

import torch
from trl import GRPOConfig, GRPOTrainer

from vecenv.adapters.trl import EpisodeRollouts, episode_reward
from vecenv.learn.group_episodes import EpisodeReward

model = sys.argv[1] if len(sys.argv) > 1 else "smollm2"
worth = EpisodeReward(invalid=0.1)
rollouts = EpisodeRollouts("single_stock_costs", market="planted", context=("signal",), days=3, reward=worth)


def watched(prompts, trainer):
    """Play the episodes, and show the first of them, and the reward of each with its parts."""
    told = rollouts(prompts, trainer)
    for part in ("prompt_ids", "completion_ids"):
        print(f"{part}: {trainer.processing_class.decode(told[part][0])}")
    print({part: told[part] for part in ("episode_reward", "grade", "invalid")})
    return told


args = GRPOConfig(
    "runs/trl",
    num_generations=4,
    per_device_train_batch_size=8,  # two groups
    max_steps=1,
    max_completion_length=16,
    report_to="none",
    bf16=torch.cuda.is_available(),
)
trainer = GRPOTrainer(
    model, reward_funcs=[episode_reward], args=args, train_dataset=rollouts.dataset(16), rollout_func=watched
)
trainer.train()
print(trainer.state.log_history[-1])
