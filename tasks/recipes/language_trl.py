"""A language model by TRL's GRPOTrainer, which generates in our episodes (extra `trl`)."""

import sys

import torch
from trl import GRPOConfig, GRPOTrainer

from vecenv.adapters.trl import EpisodeRollouts, episode_reward

model = sys.argv[1] if len(sys.argv) > 1 else "smollm2"
rollouts = EpisodeRollouts("single_stock_costs", market="planted", context=("signal",), days=3)
args = GRPOConfig(
    "runs/trl",
    num_generations=4,
    per_device_train_batch_size=4,
    max_steps=1,
    max_completion_length=16,
    report_to="none",
    bf16=torch.cuda.is_available(),
)
trainer = GRPOTrainer(
    model, reward_funcs=[episode_reward], args=args, train_dataset=rollouts.dataset(16), rollout_func=rollouts
)
trainer.train()
print(trainer.state.log_history[-1])
