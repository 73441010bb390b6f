"""The engine: one sub-environment's rules batched over rows, stepped, compiled and collected. It knows no market."""
