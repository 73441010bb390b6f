"""Adapters to other libraries, each an optional dependency that is imported only when used."""
