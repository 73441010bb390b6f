"""A model on real days that it has never seen."""
