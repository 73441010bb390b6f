"""What scores of news are worth to agents on real prices."""
