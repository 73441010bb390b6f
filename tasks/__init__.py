"""What an agent is asked: one file per task family."""
