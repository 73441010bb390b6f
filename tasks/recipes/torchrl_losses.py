"""TorchRL: its modules, collector and loss on a `VecEnv`, which is an `EnvBase`."""

import torch
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.collectors import Collector
from torchrl.modules import NormalParamExtractor, ProbabilisticActor, TanhNormal, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

import vecenv

torch.manual_seed(0)
env = vecenv.make("stock_trading", num_envs=64, market="synthetic", action="tilt", compile=False)
size, actions = env.observation_spec["observation"].shape[-1], env.scenario.action_spec.shape[-1]

layers = nn.Sequential(nn.Linear(size, 64), nn.Tanh(), nn.Linear(64, 2 * actions), NormalParamExtractor())
actor = ProbabilisticActor(
    TensorDictModule(layers, ["observation"], ["loc", "scale"]),
    in_keys=["loc", "scale"],
    distribution_class=TanhNormal,
    return_log_prob=True,
)
critic = ValueOperator(nn.Sequential(nn.Linear(size, 64), nn.Tanh(), nn.Linear(64, 1)))
loss, advantage = ClipPPOLoss(actor, critic), GAE(gamma=0.99, lmbda=0.95, value_network=critic)
optimiser = torch.optim.Adam(loss.parameters(), lr=3e-4)

for batch in Collector(env, actor, frames_per_batch=64 * 16, total_frames=64 * 16 * 3):
    advantage(batch)
    terms = loss(batch.reshape(-1))
    total = terms["loss_objective"] + terms["loss_critic"] + terms["loss_entropy"]
    optimiser.zero_grad()
    total.backward()
    optimiser.step()
    print(f"loss {total.item():.4f}, reward {batch['next', 'reward'].mean().item():.5f}")
