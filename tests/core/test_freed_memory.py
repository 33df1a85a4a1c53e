"""Freed arrays stay in the process, or go back to the system."""

import subprocess
import sys

PROGRAM = """
import numpy as np
from mgpu_ngram.core.freed_memory import keep_freed_memory

def own_mebibytes():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) >> 10 for line in file if line.startswith("RssAnon"))

before = own_mebibytes()
for limits in (), (1 << 30,), (64 << 20,):
    keep_freed_memory(*limits)
    np.ones(1 << 20)  # 8 MiB
    np.ones(4 << 20)  # 32 MiB
    print(own_mebibytes() - before)
"""


def test_freed_memory_is_kept_within_shares_of_a_limit():
    """All, an array of 8 MiB, and none."""
    all_of_it, some, none = map(int, subprocess.check_output([sys.executable, "-c", PROGRAM], text=True).split())
    assert all_of_it >= 32 and 8 <= some < 24 and none < 8
