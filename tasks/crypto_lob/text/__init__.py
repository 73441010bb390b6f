"""Order books in words, and orders as text."""
