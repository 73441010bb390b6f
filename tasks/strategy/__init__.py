"""Write a rule for stock trading, graded on hundreds of common paths."""
