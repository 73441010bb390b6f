"""FrozenLake: over slippery ice to a goal, around holes."""
