"""Statistical baseline models of a market."""
