"""Ctrl-C in a phase of a run."""

import time

from mgpu_ngram.jobs.progress import Progress


class Interrupt(Progress):
    """Send Ctrl-C when `done` units of a phase are finished.

    pause  seconds after each unit, in which entries are saved
    """

    def __init__(self, phase, done, pause=0.02):
        self.wanted, self.left, self.phase, self.pause = phase, done, "", pause

    def start(self, phase, total, unit="", rate=""):
        self.phase = phase
        self.advance(0)

    def advance(self, done, amount=0):
        if self.phase == self.wanted:
            self.left -= done
            if self.left <= 0:
                raise KeyboardInterrupt
            time.sleep(self.pause)
