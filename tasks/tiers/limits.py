"""Bounds of the tiers' actions."""

MAX_ORDERS = 8
"""Orders of a day."""

MAX_GAIN = 8.0
"""Largest gain: the exponential has ten digits up to it, and tilted steps sum exactly."""
