"""``python -m vecenv``, by which torchrun starts the command as a module."""

import sys
from importlib.metadata import entry_points

if __name__ == "__main__":
    (command,) = (point for point in entry_points(group="console_scripts") if point.name == "vecenv")
    sys.exit(command.load()())
