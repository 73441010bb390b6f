"""Days of news in words, and signals as text."""
