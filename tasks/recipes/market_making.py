"""Market making: quote both sides of a simulated book that answers, by PPO and by rules."""

import vecenv
from vecenv.learn.evaluation import PolicyAgent, evaluate
from vecenv.learn.ppo import PPOConfig
from vecenv.registry import task_named

env = vecenv.make("market_making", num_envs=16, max_ticks=100, compile=False)
trained = vecenv.train(env, PPOConfig(num_steps=10, total_frames=16 * 10 * 3, minibatches=2))
agents = {"trained": PolicyAgent(trained.policy())}
agents |= {name: agent() for name, agent in task_named("market_making").agents.items()}
evaluation = evaluate(env, agents, seed=1)
for name, grades in evaluation.grades.items():
    print(f"{name:16} grade {grades['grade'].mean:.3f}, profit {evaluation.outcomes[name]['profit'].mean:.1f}")
