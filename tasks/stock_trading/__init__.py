"""Daily stock trading, the task of the FinRL contests."""
