"""Trading on signals from outside the market, such as scores of news."""
