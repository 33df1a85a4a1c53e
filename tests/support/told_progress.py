"""A progress that keeps what it is told."""

from mgpu_ngram.jobs.progress import Progress


class Told(Progress):
    """Records the progress: of each phase its start, then the sums of done and amount."""

    def __init__(self):
        self.phases = []

    def start(self, phase, total, unit="", rate=""):
        self.phases.append([phase, total, unit, rate, 0, 0])

    def advance(self, done, amount=0):
        self.phases[-1][4] += done
        self.phases[-1][5] += amount
