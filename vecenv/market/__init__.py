"""Markets: sources, indicators, generators, and the tape that the engine reads."""
