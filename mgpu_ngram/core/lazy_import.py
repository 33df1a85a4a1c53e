"""Import a module when it is first used: pyarrow takes 0.1 s, and many commands need none of it."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any


class LazyModule(ModuleType):
    """A module by name, imported when one of its attributes is first asked for."""

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(import_module(self.__name__), attribute)
        setattr(self, attribute, value)
        return value
