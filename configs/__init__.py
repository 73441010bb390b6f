"""Presets, installed as `vecenv.presets`."""
