"""The trading tiers as text."""
