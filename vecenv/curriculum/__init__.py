"""Curricula: schedulers that read who succeeded at which level, and choose the levels that follow."""
