"""Statistical models of a market: what a learned one has to beat."""
