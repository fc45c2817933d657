"""Puts a mutant in the place of the real function, in this process only.

How it works. Every name under which a function was imported refers to the same object, so its
`__code__` is replaced and the object stays. That reaches methods, properties, class and static
methods, and wrapped functions, without importing any module anew.

Not here: processes (`workbench.py`). Planting is never undone, because the process then ends.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

from tools.mutation.mutants import Mutant


def live_functions(module: ModuleType) -> Iterator[FunctionType]:
    """Every function and method that the module itself defines."""
    for value in list(vars(module).values()):
        if inspect.isclass(value) and value.__module__ == module.__name__:
            yield from _of_class(value)
        elif getattr(value, "__module__", None) == module.__name__:
            yield from _unwrapped(value)


def _of_class(owner: type) -> Iterator[FunctionType]:
    for value in list(vars(owner).values()):
        if inspect.isclass(value) and value.__qualname__.startswith(owner.__qualname__ + "."):
            yield from _of_class(value)
        else:
            yield from _unwrapped(value)


def _unwrapped(value: Any) -> Iterator[FunctionType]:
    if isinstance(value, property):
        for accessor in (value.fget, value.fset, value.fdel):
            if accessor is not None:
                yield from _unwrapped(accessor)
        return
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    elif isinstance(value, functools.cached_property):
        value = value.func
    if hasattr(value, "__wrapped__"):
        value = inspect.unwrap(value)
    if isinstance(value, FunctionType):
        yield value


def plant(mutant: Mutant, module: ModuleType, code: CodeType) -> None:
    """Makes the live function behave as the mutant.

    Raises LookupError when there is no such function, and ValueError when the change removes the
    last use of a variable of an enclosing scope.
    """
    for function in live_functions(module):
        known = function.__code__
        if (known.co_qualname, known.co_firstlineno) == (mutant.function, mutant.first_line):
            function.__code__ = code
            return
    raise LookupError(f"{mutant.function} is no live function of {module.__name__}")
