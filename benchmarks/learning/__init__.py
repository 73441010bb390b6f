"""Benchmarks of learning: GRPO of language models, and reward presets."""
