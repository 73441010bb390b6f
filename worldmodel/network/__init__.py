"""Neural market network: trunks, output heads and checkpoints."""
