"""Programs that agents write, verified by a ladder of hidden tests in a sandbox."""
