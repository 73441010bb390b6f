"""Stable-Baselines3: its PPO on rows of ours, as its own kind of vectorised environment (extra `sb3`)."""

from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import VecMonitor, VecNormalize

from vecenv.adapters.stable_baselines import StableBaselinesVecEnv

env = VecNormalize(VecMonitor(StableBaselinesVecEnv("stock_trading", 64, market="synthetic", seed=0, compile=False)))
learner = PPO("MlpPolicy", env, n_steps=16, batch_size=256, n_epochs=2, seed=0)
learner.learn(2_048)
actions, _ = learner.predict(env.reset(), deterministic=True)
print(actions.shape)
