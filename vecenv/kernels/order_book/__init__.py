"""Limit order book with price-time priority, in whole ticks and shares."""
