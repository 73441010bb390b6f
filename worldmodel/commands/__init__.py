"""``vecenv worldmodel``."""
