"""What agents that were trained on generated markets are worth on real ones."""
