"""Second-level trading of one coin on replayed order books."""
