"""What an agent is asked: one folder per task family, and the command line."""
