"""Tool chain: an answer that needs k calls, the output of each the input of the next."""
