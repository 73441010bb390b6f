"""Sessions of a served market."""
