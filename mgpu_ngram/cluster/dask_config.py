"""Settings of Dask: the defaults of this package, and the settings of the user."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

import dask
from dask.utils import parse_bytes, parse_timedelta

from mgpu_ngram.core.errors import InputError

NOT_SET = object()
ENVIRONMENT = "distributed.nanny.pre-spawn-environ"  # environment variables of workers that start here
# allowed-failures also counts tasks that only waited on a lost worker; faults.py counts better.
# Dask makes the C library return all freed memory at once, so every large array waits for new pages: writing files of
# counts took 1.7 times as long. These are the thresholds that glibc reaches by itself.
DASK_SETTINGS = {
    f"{ENVIRONMENT}.MALLOC_TRIM_THRESHOLD_": 64 << 20,
    f"{ENVIRONMENT}.MALLOC_MMAP_THRESHOLD_": 32 << 20,
    "distributed.scheduler.allowed-failures": 1_000_000,
    "distributed.scheduler.no-workers-timeout": "60s",
    "distributed.deploy.lost-worker-timeout": "1000 days",  # Dask would give up a worker 15 s after its death
    "distributed.worker.profile.enabled": False,
}


def apply_settings(settings: dict[str, Any]) -> None:
    """Apply our settings, and then the user's after checks, to this process and to the processes that it starts."""
    _check(settings)
    dask.config.set({**DASK_SETTINGS, **settings})


def _check(settings: dict[str, Any]) -> None:
    """Refuse keys that Dask would ignore, and mappings, which would replace a whole section of its settings."""
    for key, value in settings.items():
        if isinstance(value, dict):
            raise InputError(
                f"dask.{key} is a mapping but must be a value; "
                "write its keys with dots, such as distributed.comm.timeouts.connect"
            )
        if key in DASK_SETTINGS:
            _check_value(key, value, DASK_SETTINGS[key])
            continue
        if key.split(".")[0] not in dask.config.config:
            continue
        section = key.rpartition(".")[0]
        if section == ENVIRONMENT or dask.config.get(section, default=NOT_SET) == {}:  # any keys are legal
            continue
        if (usual := dask.config.get(key, default=NOT_SET)) is not NOT_SET:
            _check_value(key, value, usual)
            continue
        close = difflib.get_close_matches(key, _dotted(dask.config.config), 1, 0.5)
        way_out = f"did you mean {close[0]!r}?" if close else "see the configuration reference of Dask"
        raise InputError(f"dask: unknown key {key!r}; {way_out}")


def _check_value(key: str, value: Any, usual: Any) -> None:
    """Refuse a text that is not a time, or not a size, where Dask expects one; Dask would fail only when it uses it."""
    if not isinstance(usual, str) or not isinstance(value, str) or value == "inf":  # some times may be "inf"
        return
    for parse, what in (parse_timedelta, "a time"), (parse_bytes, "a size"):
        if _parses(usual, parse):
            if not _parses(value, parse):
                raise InputError(f"dask.{key} is {value!r} but must be {what}, such as {usual}")
            return


def _parses(text: str, parse: Callable[[str], Any]) -> bool:
    try:
        parse(text)
    except (IndexError, KeyError, ValueError):
        return False
    return True


def _dotted(settings: dict[str, Any], prefix: str = "") -> list[str]:
    keys = []
    for key, value in settings.items():
        keys += _dotted(value, f"{prefix}{key}.") if isinstance(value, dict) else [f"{prefix}{key}"]
    return keys
