"""My network: a module of torch.nn in the fused collector, and a training loop of my own."""

import torch
from torch import nn
from torch.func import functional_call

import vecenv
from vecenv import FusedCollector


class MyPolicy:
    """A module with noise: `act` is a pure function of parameters and observation."""

    def __init__(self, module):
        self.module, self.names = module, [name for name, _ in module.named_parameters()]
        self.parameters = [tensor for _, tensor in module.named_parameters()]
        self.extras = {}

    def act(self, parameters, observation, key, elapsed):
        mean = functional_call(self.module, dict(zip(self.names, parameters, strict=True)), (observation,))
        return (mean,)


env = vecenv.make("stock_trading", num_envs=256, market="synthetic", action="tilt", reward="log_return", compile=False)
size, actions = env.observation_spec["observation"].shape[-1], env.scenario.action_spec.shape[-1]
policy = MyPolicy(nn.Sequential(nn.Linear(size, 32), nn.Tanh(), nn.Linear(32, actions), nn.Tanh()))

best = -float("inf")
for batch in FusedCollector(env, policy, num_steps=16, total_frames=256 * 16 * 8):
    # A search at random: keep a change of the weights if the rewards were higher. Weights are read in place.
    reward = batch["next", "reward"].mean().item()
    with torch.no_grad():
        if reward > best:
            best, kept = reward, [tensor.clone() for tensor in policy.parameters]
        for tensor, good in zip(policy.parameters, kept, strict=True):
            tensor.copy_(good + 0.05 * torch.randn_like(good))
    print(f"{reward:+.5f}, best {best:+.5f}")
