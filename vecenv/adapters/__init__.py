"""Doors for other libraries, each an extra of its own; none is imported unless it is asked for."""
