"""My learner: PPO with a bonus of my own in its loss, registered under a name and held to the rules of learners."""

from dataclasses import replace

import vecenv
from vecenv.learn.ppo import PPO, PPOConfig
from vecenv.testing import check_learner, learner_case


class CalmPPO(PPO):
    """PPO that cuts advantages, so that single days teach no more than others.

    A multiple of the batch's mean size would not do: two processes, each with half of the rows, would learn something
    else than one, and `check_learner` says so.
    """

    def learned_advantages(self, advantages, values, next_values):
        return advantages.clamp(-3.0, 3.0)  # of rewards that are divided by the deviation of returns


record = replace(vecenv.algorithm_named("ppo"), name="calm_ppo", summary="PPO with cut advantages", learner=CalmPPO)
vecenv.register_algorithm(record)  # `vecenv train --import own_learner.py --algorithm calm_ppo` has it then too

env = vecenv.make("stock_trading", num_envs=64, market="synthetic", action="tilt", compile=False)
config = PPOConfig(num_steps=16, total_frames=4096, minibatches=2, policy="symbol")
trained = vecenv.train(env, config, algorithm="calm_ppo", on_update=lambda metrics: print(metrics["frames"]))

# Resumption bit for bit, refused checkpoints, numbers that are not finite, shards: a broken rule is named.
check_learner(replace(learner_case("ppo"), name="calm_ppo", make=CalmPPO), compiled=False)
print("all rules of learners hold")
