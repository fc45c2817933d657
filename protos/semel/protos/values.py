"""Values that are made for every batch: frozen for the type checker, and cheap to make.

A frozen dataclass sets each field through `object.__setattr__`, so one of 18 fields takes 2.5 µs to
make. Without that it takes 0.3 µs, or 0.9 µs by keywords. mypy still refuses code that changes such
a value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def value(cls: type[T]) -> type[T]:
    """Makes a class a dataclass with slots that must not be changed, equal and hashed by its
    fields."""
    return dataclass(slots=True, unsafe_hash=True)(cls)
