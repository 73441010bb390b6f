"""A car on a track, paid in four ways: what rewards do."""
