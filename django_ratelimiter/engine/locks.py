"""Locks that are free in a forked child, which has none of the threads that may hold them; and what is new in it."""

from __future__ import annotations

import os
from typing import Any, Final, TypeVar
from weakref import WeakSet

LockOfSomeKind = TypeVar("LockOfSomeKind")

_locks: Final[WeakSet[Any]] = WeakSet()


def freed_by_fork(lock: LockOfSomeKind) -> LockOfSomeKind:
    """Return this lock, and free it in each forked child. For state that a child can continue to use unchanged.

    Other state has the method that a lock has for this, and begins anew in it.
    """
    _locks.add(lock)
    return lock


def _free_in_child() -> None:
    for lock in list(_locks):
        lock._at_fork_reinit()  # as `logging` does for its own locks


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_free_in_child)
