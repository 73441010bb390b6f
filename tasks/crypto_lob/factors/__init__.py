"""Factors of order books, all computed causally in one batch before episodes."""
