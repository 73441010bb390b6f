"""Imported by ranks under test: a fault of one of them in the middle of a run, named by the environment.

``FAULT`` is "kind rank update", of the first start alone; kinds are hang, raise, kill, stop, and
loss, which is then no number.
"""

import os
import signal
import time

from vecenv.learn.learner import Learner

kind, rank, update = os.environ["FAULT"].split()
own_objective, own_update = Learner.gradients_of, Learner.make_update


def faulty(learner):
    if learner.update_number == int(update) and int(os.environ.get("RANK", 0)) == int(rank) and first_start():
        if kind == "hang":
            while True:
                time.sleep(0.01)
        if kind == "raise":
            raise RuntimeError("a fault of this rank")
        if kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        if kind == "loss":
            learner.parameters[0].fill_(float("nan"))
    return own_update(learner)


def first_start() -> bool:
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)) == 0


Learner.make_update = faulty
