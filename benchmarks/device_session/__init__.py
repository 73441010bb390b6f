"""Time-limited benchmark session of a device in one command."""
