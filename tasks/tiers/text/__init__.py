"""Text interface of the trading tiers."""
