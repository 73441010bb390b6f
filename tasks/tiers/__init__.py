"""Five trading tiers for agents that read numbers or text."""
