"""Ctrl-C in a phase of a run."""

import time

from mgpu_ngram.jobs.progress import Progress
from tests.support.slowness import wait_until


class Interrupt(Progress):
    """Send Ctrl-C when `done` units of a phase are finished.

    pause  seconds after each unit, in which entries are saved
    until  returns whether what the test needs is saved: Ctrl-C waits for it
    """

    def __init__(self, phase, done, pause=0.02, until=lambda: True):
        self.wanted, self.left, self.phase, self.pause, self.until = phase, done, "", pause, until

    def start(self, phase, total, unit="", rate=""):
        self.phase = phase
        self.advance(0)

    def advance(self, done, amount=0):
        if self.phase == self.wanted:
            self.left -= done
            if self.left <= 0:
                assert wait_until(self.until)
                raise KeyboardInterrupt
            time.sleep(self.pause)
