"""Peers of our environments, written from the pages of their rules: ``vecenv bench --peers`` measures them."""
