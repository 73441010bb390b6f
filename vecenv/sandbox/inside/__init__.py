"""What runs inside the jail: the standard library alone, since nothing else is seen there."""
