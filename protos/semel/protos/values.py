"""Values that are made for every batch: frozen to the type checker, cheap when they are made.

A frozen dataclass sets each field through `object.__setattr__`, so that one of 18 fields takes
2.5 µs to make; without that it takes 0.3 µs, or 0.9 µs by keywords. mypy refuses to change such a
value just the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def value(cls: type[T]) -> type[T]:
    """A dataclass with slots that nobody changes, equal and hashed by its fields."""
    return dataclass(slots=True, unsafe_hash=True)(cls)
