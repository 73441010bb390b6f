"""Reinforcement learning: PPO, GRPO and its variants, evaluation of agents, metrics and reports."""
