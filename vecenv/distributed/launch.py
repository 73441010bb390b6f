"""Start of a command as several ranks on this machine, by torchrun's agent, and what it tells of one that fails."""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
"""Variable of the environment with the file in which a rank tells the agent why it ends."""

LAUNCHED = "VECENV_LAUNCHED"
"""Variable of the environment of ranks whose end `launched` tells."""

DIED = {
    "SIGKILL": "was killed by SIGKILL: by a user, or by the system for want of memory",
    "SIGALRM": "made no step within --stall-seconds; where it stood is told above",
}
"""What it means that a rank has died of a signal."""


def launched(processes: int, words: Sequence[str], module: str = "vecenv") -> None:
    """Run ``python -m MODULE WORDS`` as so many ranks on this machine, and return when all have ended well.

    The ranks write to the terminal of this process. When one fails, the others are ended.

    Raises:
        ChildProcessError: a rank failed; the message names the first that did, and tells why.
    """
    # Here, as torch's agent takes a second to load.
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # What it logs of a failure is told below.
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="vecenv-ranks-") as logs:
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=processes,
            run_id=uuid.uuid4().hex,
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            max_restarts=0,
            monitor_interval=0.1,
            logs_specs=DefaultLogsSpecs(log_dir=logs),
        )
        os.environ[LAUNCHED] = "1"
        try:
            elastic_launch(config, sys.executable)("-m", module, *words)
        except ChildFailedError as error:
            rank, failure = error.get_first_failure()
            raise ChildProcessError(f"rank {rank} (process {failure.pid}) {_why(failure)}") from None
        except SignalException:
            raise KeyboardInterrupt from None
        finally:
            del os.environ[LAUNCHED]


def recorded(reason: str) -> bool:
    """Write why this process ends for the agent that started it as a rank; return whether `launched` will tell it."""
    file = os.environ.get(ERROR_FILE)
    if file:
        told = {"message": reason, "extraInfo": {"timestamp": str(int(time.time()))}}
        Path(file).write_text(json.dumps({"message": told}))
    return bool(file) and LAUNCHED in os.environ


def _why(failure: Any) -> str:  # noqa: ANN401
    """Tell why a rank has failed."""
    if failure.exitcode < 0:
        name = failure.signal_name()
        return DIED.get(name, f"died of {name}")
    told = failure.error_file_data.get("message")
    reason = told.get("message") if isinstance(told, dict) else None
    return f"failed: {reason}" if reason else f"ended with exit code {failure.exitcode}"
