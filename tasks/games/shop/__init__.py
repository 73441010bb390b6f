"""A shop after WebShop: search, look, choose options and buy what an instruction asks for."""
