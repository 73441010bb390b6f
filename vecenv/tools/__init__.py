"""Worlds of tools: functions of rows, called for many agents at once."""
