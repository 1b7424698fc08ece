"""The user of a request, which may not be read yet."""

from __future__ import annotations

import logging
from asyncio import _get_running_loop
from typing import Any

from django.core.exceptions import SynchronousOnlyOperation
from django.http import HttpRequest
from django.utils.asyncio import async_unsafe
from django.utils.functional import LazyObject, SimpleLazyObject, empty

logger = logging.getLogger("django_ratelimiter")


class UserNotLoaded(SynchronousOnlyOperation):
    """Raised on an event loop if the user is not read yet, because that may block."""


_attribute = object.__getattribute__


def user_of(request: HttpRequest) -> str | None:
    """Return the primary key of a request's user, as text. Raises UserNotLoaded on an event loop if it is not read."""
    user: Any = getattr(request, "user", None)
    try:
        if isinstance(user, LazyObject):  # without the wrapper, which makes each access several times slower
            wrapped = _attribute(user, "_wrapped")
            if wrapped is empty:
                if _get_running_loop() is None:
                    _attribute(user, "_setup")()
                else:
                    _read_user(user)
                wrapped = _attribute(user, "_wrapped")
            user = wrapped
        return user_key(user)
    except SynchronousOnlyOperation as error:
        raise UserNotLoaded(*error.args) from None
    except Exception:  # project code may raise anything
        log_unreadable_user()
        return None


@async_unsafe("The user of a request is read from its session; `limiter.acheck` does it in a thread.")
def _read_user(user: Any) -> None:
    """Make Django read the user. Raises SynchronousOnlyOperation on an event loop."""
    user._setup()


def user_key(user: Any) -> str | None:
    """Return the primary key of a user, as text; `None` for an anonymous user."""
    if user is None or not user.is_authenticated:
        return None
    key = user.pk
    return None if key is None else str(key)


def is_djangos_own(user: Any) -> bool:
    """Return whether `request.auser()` gives the same user. Other middleware may have replaced only `request.user`."""
    find = user.__dict__.get("_setupfunc") if isinstance(user, SimpleLazyObject) else None
    return getattr(find, "__module__", "") == "django.contrib.auth.middleware"


def log_unreadable_user() -> None:
    """Log the current exception."""
    # The view decides whether it needs the session.
    logger.exception("The user of a request cannot be read; it counts as anonymous.")
