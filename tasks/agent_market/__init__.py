"""Agent-based market: a live order book, background agents, and seats for learners."""
