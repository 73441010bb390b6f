"""Learned markets."""
