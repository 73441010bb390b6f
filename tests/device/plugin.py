"""Lets a pytest of its own believe in a GPU: ``pytest -p tests.device.plugin``; the guard comes before PyTorch."""

from tests.device import guard

guard.load()
