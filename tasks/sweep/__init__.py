"""Sweeps: many trainings whose settings vary, chosen and pruned by their validations, and the best one tested."""
