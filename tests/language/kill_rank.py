"""Imported by ranks under test: rank 1 is killed after a step of supervised training, or before an update of GRPO."""

import os
import signal

from vecenv.language.grpo import LanguageGRPO
from vecenv.language.supervised_checkpoint import SupervisedCheckpoint

after_step, update = SupervisedCheckpoint.after_step, LanguageGRPO.update


def kill(number):
    if os.environ["RANK"] == "1" and number == int(os.environ["KILLED_AT"]):
        os.kill(os.getpid(), signal.SIGKILL)


def step(self, number, *state):
    after_step(self, number, *state)
    kill(number)


def learn(self):
    kill(self.update_number)
    return update(self)


SupervisedCheckpoint.after_step, LanguageGRPO.update = step, learn
