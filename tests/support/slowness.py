"""How slow a machine is at present, by which limits of time are scaled.

A limit ends a test that hangs; no test asserts how long something takes.
"""

import functools
import time

UNIT_SECONDS = 0.03  # seconds that the unit of work below takes on an idle core


@functools.cache
def slowness():
    """Return how many times slower this machine is than an idle one, measured once; 1 or more."""
    start = time.monotonic()
    sum(i * i for i in range(1_000_000))
    return max(1.0, (time.monotonic() - start) / UNIT_SECONDS)


def scaled(seconds):
    """Return the limit for what takes at most `seconds` on an idle machine.

    By the present slowness, and by 3 because the machine may be slower when the test waits.
    """
    return 3 * slowness() * seconds


def wait_until(condition, seconds=60, pause=0.01):
    """Wait until condition() is true, at most for so many scaled seconds; return its last value."""
    deadline = time.monotonic() + scaled(seconds)
    while not (found := condition()) and time.monotonic() < deadline:
        time.sleep(pause)
    return found
