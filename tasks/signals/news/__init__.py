"""Scores of texts about companies: files of news, scorers, a cache, and panels of scores."""
