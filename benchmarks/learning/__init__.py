"""What agents learn."""
