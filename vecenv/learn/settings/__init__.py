"""Settings and records of the shipped learners, without PyTorch: a command shows and checks them before it loads it."""
