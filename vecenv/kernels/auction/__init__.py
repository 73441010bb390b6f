"""Call auctions: all orders of a moment cleared at one price."""
