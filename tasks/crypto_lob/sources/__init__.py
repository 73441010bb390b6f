"""Sources of order books: files of snapshots, of the contests and of LOBSTER, and a generator."""
