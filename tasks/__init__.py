"""Trading tasks, one folder per family, and the command line."""
