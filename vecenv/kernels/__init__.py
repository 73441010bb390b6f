"""Pure functions of one sub-environment; the engine batches them."""
