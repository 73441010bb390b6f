"""Everything that a device is to be asked, in one command that ends on time."""
