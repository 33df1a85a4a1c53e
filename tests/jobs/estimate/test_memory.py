"""An estimate within a memory limit: its process stays within it, beside the model and the words."""

import subprocess
import sys

import pytest

from tests.jobs.count.test_memory import random_words

BUDGET = 64 << 20

# A separate process: prints the peak memory of each phase beyond the present use, and the bytes of the model.
MEASURE = """
import sys, threading, time
from mgpu_ngram.cluster.local import LocalExecutor
from mgpu_ngram.core.memory_config import MemoryConfig
from mgpu_ngram.jobs.context import RunContext
from mgpu_ngram.jobs.estimate.run import EstimateConfig, run
from mgpu_ngram.jobs.progress import Progress

def own_bytes():
    '''Of this process alone: what is mapped from files may be dropped at any time.'''
    with open("/proc/self/status") as file:
        return next(1024 * int(line.split()[1]) for line in file if line.startswith("RssAnon"))

class Phases(Progress):
    now, most = "", {}

    def start(self, phase, *_):
        self.now = phase

def watch():
    while watching:
        phases.most[phases.now] = max(phases.most.get(phases.now, 0), own_bytes() - before)
        time.sleep(0.002)

folder, budget, prune = sys.argv[1], int(sys.argv[2]), [int(word) for word in sys.argv[3:]]
executor, phases = LocalExecutor(workers=2), Phases()
memory = MemoryConfig(host_bytes=budget, spill_dir=f"{folder}/spill")

def make(text, name, memory):
    config = EstimateConfig([f"{folder}/{text}"], order=4, prune=prune, discount_fallback=[])
    return run(config, RunContext(executor, f"{folder}/{name}", True, memory=memory, progress=phases))

for name, limits in ("warm", MemoryConfig()), ("limited", memory):  # imports modules, and loads compiled functions
    make("small", name, limits)
watching, before, phases.now, phases.most = True, own_bytes(), "start", {}
watcher = threading.Thread(target=watch)
watcher.start()
result = make("text", "out", memory)
watching = False
watcher.join()
print(*(max(most for phase, most in phases.most.items() if (phase == "assemble") == last) for last in (False, True)),
      result.path.stat().st_size)
"""


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("prune", [["0", "1", "1", "1"], []], ids=["pruned", "all"])
def test_parts_stay_within_the_limit(prune, tmp_path):
    """Tables of all n-grams of 4 M words would take about three times the limit."""
    random_words(tmp_path / "small", 100_000)
    random_words(tmp_path / "text", 4_000_000)
    command = [sys.executable, "-c", MEASURE, str(tmp_path), str(BUDGET), *prune]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    of_parts, with_model, model = map(int, done.stdout.split())
    print(f"{of_parts / BUDGET:.2f} of the limit, {(with_model - model) / BUDGET:.2f} beside the model")
    assert of_parts <= BUDGET and with_model - model <= BUDGET
    assert [path for path in (tmp_path / "spill").iterdir()] == []
