"""What a language agent reads and writes."""
