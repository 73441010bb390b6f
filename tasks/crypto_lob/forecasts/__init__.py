"""Forecasts of moves of the mid, made walk-forward: those of a row come from a model of earlier rows alone."""
