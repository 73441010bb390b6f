"""Maximum likelihood of the next day."""
