"""Short programs that each do one thing; README.md lists them. Run one by its path, or by ``python -m``."""
