"""News scores: the agent sees the day's sentiment of each stock, and rewards weigh its risk."""

import vecenv
from vecenv.learn.cppo import CPPOConfig
from vecenv.learn.evaluation import PolicyAgent, evaluate
from vecenv.registry import task_named

# A file of scores of your own: `vecenv data news`, then market="prices.parquet" with columns sentiment and risk.
env = vecenv.make(
    "signals", num_envs=64, market="news", observed=("sentiment", "risk"), risk_strength=0.1, compile=False
)
trained = vecenv.train(env, CPPOConfig(num_steps=16, total_frames=4096, minibatches=2, policy="symbol"))
agents = {"trained": PolicyAgent(trained.policy())}
agents |= {name: agent() for name, agent in task_named("signals").agents.items() if name != "oracle"}
for name, outcomes in evaluate(env, agents, seed=1).outcomes.items():
    print(f"{name:14} {outcomes['total_return'].mean:+.2%}")
