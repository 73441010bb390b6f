"""Experiments: settings, resolved once, and what becomes of them: training, comparison, files."""
