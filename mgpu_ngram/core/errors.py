"""The two kinds of failure a user meets. Both messages are one line: value, limit, way out."""


class InputError(ValueError):
    """What the user gave cannot be used: a path, an option, a damaged file. Exit status 2."""


class RunError(RuntimeError):
    """The run failed: out of memory, full disk, lost workers. Exit status 1."""
