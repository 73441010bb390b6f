"""Pure functions of one sub-environment, batched by ``torch.vmap``."""
