"""How slow a machine is at present, by which limits of time are scaled."""

import functools
import time

UNIT_SECONDS = 0.03  # seconds that the unit of work below takes on an idle core


@functools.cache
def slowness():
    """Return how many times slower this machine is than an idle one, measured once; 1 or more."""
    start = time.monotonic()
    sum(i * i for i in range(1_000_000))
    return max(1.0, (time.monotonic() - start) / UNIT_SECONDS)
