"""An order book: one coin, second by second; with `--env.book FILE` recorded snapshots, here generated ones."""

import vecenv
from vecenv.learn.dqn import DQNConfig
from vecenv.learn.evaluation import PolicyAgent, evaluate
from vecenv.registry import task_named

env = vecenv.make("crypto_lob", num_envs=64, synthetic_hours=1.0, compile=False)
print(env.scenario.tape.metadata()["description"])

trained = vecenv.train(env, DQNConfig(num_steps=16, total_frames=16 * 64 * 8, buffer_size=8192, minibatch_size=256))
agents = {"trained": PolicyAgent(trained.policy())}
agents |= {name: agent() for name, agent in task_named("crypto_lob").agents.items() if name in ("hold", "random")}
for name, outcomes in evaluate(env, agents, seed=1).outcomes.items():
    print(name, {outcome: round(interval.mean, 5) for outcome, interval in outcomes.items()})
