"""A fork while another thread is at work, which the child does not have."""

from __future__ import annotations

import os
import re
from pathlib import Path
from threading import Lock, RLock
from typing import Any

import pytest

import django_ratelimiter
from django_ratelimiter.engine.locks import freed_by_fork
from tests.making import fork

#: Where what a lock protects is made again in a child, and the lock with it.
MADE_ANEW = {"engine/usage/__init__.py", "engine/local/store.py", "engine/breaker.py"}


@pytest.mark.parametrize("kind", [Lock, RLock])
def test_a_lock_that_is_held_is_free_in_the_child(kind: Any) -> None:
    lock = freed_by_fork(kind())
    with lock:
        child = fork()
        if not child:
            _exit_by(lock)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _exit_by(lock: Any) -> None:
    """Exit with 0 if nobody holds the lock: then it can be released as often as it has been acquired, and no more."""
    try:
        is_free = lock.acquire(blocking=False)
        lock.release()
        lock.release()
    except RuntimeError:
        os._exit(not is_free)
    finally:
        os._exit(2)


def test_every_lock_is_freed_or_made_anew() -> None:
    package = Path(django_ratelimiter.__file__).parent
    made = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if re.search(r"(?<!freed_by_fork\()(?<!asyncio\.)\bR?Lock\(\)", path.read_text())
    }
    assert made == MADE_ANEW
