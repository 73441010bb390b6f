"""How a model of a market is judged: its generated days beside the real days that followed the same origins."""
