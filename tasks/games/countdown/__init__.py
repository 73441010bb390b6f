"""Countdown: an expression of some numbers that equals a target."""
