"""Realism metrics: generated days compared with the real days after the same origins."""
