"""``python -m vecenv.benchmarks.device_session``."""

import sys

from vecenv.benchmarks.device_session.command import command

if __name__ == "__main__":
    sys.exit(command())
