"""Freed arrays stay in the process, or go back to the system."""

import subprocess
import sys

PROGRAM = """
import numpy as np
from mgpu_ngram.engine.memory.budget import give_back_freed_memory, keep_freed_memory

def own_mebibytes():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) >> 10 for line in file if line.startswith("RssAnon"))

before = own_mebibytes()
for change in keep_freed_memory, give_back_freed_memory:
    change()
    np.ones(4 << 20)  # 32 MiB
    print(own_mebibytes() - before)
"""


def test_freed_memory_is_kept_until_it_is_to_be_given_back():
    kept, given_back = map(int, subprocess.check_output([sys.executable, "-c", PROGRAM], text=True).split())
    assert kept >= 32 and given_back < 16
