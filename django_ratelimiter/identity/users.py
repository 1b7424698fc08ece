"""The user of a request, which may not be read yet."""

from __future__ import annotations

from asyncio import _get_running_loop
from functools import lru_cache
from typing import Any, Final

from django.contrib.auth import get_user_model
from django.core.exceptions import SynchronousOnlyOperation
from django.core.signals import setting_changed
from django.db.models import Model
from django.http import HttpRequest
from django.utils.asyncio import async_unsafe
from django.utils.functional import LazyObject, SimpleLazyObject, empty

from .. import tenants
from ..exceptions import raised_at
from ..logs import logger


class UserNotLoaded(SynchronousOnlyOperation):
    """Raised on an event loop if the user is not read yet, because that may block."""


#: The value of an identity that could not be read, because a store or the project's own code has failed. Empty, and
#: no other empty text.
FAILED: Final[str] = type("Failed", (str,), {})()

_attribute = object.__getattribute__


class UserByKey:
    """A user of whom only the primary key is known, as text."""

    is_authenticated = True

    def __init__(self, pk: str) -> None:
        self.pk = pk

    def get_username(self) -> str:
        return self.pk


def user_of(request: HttpRequest) -> str | None:
    """Return the `user_key` of a request's user. Raises UserNotLoaded on an event loop if the user is not read."""
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
        return user_key(user, request)
    except SynchronousOnlyOperation as error:
        raise UserNotLoaded(*error.args) from None
    except Exception as error:  # project code may raise anything
        log_unreadable_user(error)
        return FAILED


@async_unsafe("The user of a request is read from its session; `limiter.acheck` does it in a thread.")
def _read_user(user: Any) -> None:
    """Make Django read the user. Raises SynchronousOnlyOperation on an event loop."""
    user._setup()


def user_key(user: Any, request: Any) -> str | None:
    """Return the primary key of a user, as text; `None` for an anonymous user.

    For a caller of another model with that model before it, such as "shop.Device:7": the numbers are not users'.
    For one of a tenant that has its own users, with the schema before that, such as "acme:7".
    """
    if user is None or not user.is_authenticated:
        user = ninjas_user(request)
        if user is None:
            return None
    model, name, is_of_tenant = _model_and_key(user.__class__)
    key = getattr(user, name)
    if key is None or key == "":
        return None
    return f"{tenants.schema_of(request)}:{model}{key}" if is_of_tenant else f"{model}{key}"


def ninjas_user(request: Any) -> Any:
    """Return the user that `auth=` of django-ninja has returned; `None` if it has returned none, or something else."""
    found = getattr(request, "auth", None)
    return found if getattr(found, "is_authenticated", False) is True else None


@lru_cache(maxsize=256)
def _model_and_key(cls: type) -> tuple[str, str, bool]:
    """Return the prefix of the keys of this class, "" for the user model, and the attribute that has the key.

    Also whether each tenant has its own rows of it.

    A class that is no model stands for the user model if it has its `get_username`, as simplejwt's TokenUser does.
    """
    if not issubclass(cls, Model):
        prefix = "" if hasattr(cls, "get_username") else f"{cls.__module__}.{cls.__qualname__}:"
        return prefix, "pk", tenants.have_own_users()
    users, model = [each._meta.concrete_model or each for each in (get_user_model(), cls)]
    is_of_tenant = tenants.have_own(model._meta.app_label)
    if issubclass(users, model):
        return "", "pk", is_of_tenant
    if issubclass(model, users):
        return "", users._meta.pk.attname, is_of_tenant
    return f"{model._meta.label}:", "pk", is_of_tenant


def _forget_models(**_signal: object) -> None:
    """Read AUTH_USER_MODEL and TENANT_APPS again."""
    _model_and_key.cache_clear()


setting_changed.connect(_forget_models, dispatch_uid="django_ratelimiter.identity.users")


def is_djangos_own(user: Any) -> bool:
    """Return whether `request.auser()` gives the same user. Other middleware may have replaced only `request.user`."""
    find = user.__dict__.get("_setupfunc") if isinstance(user, SimpleLazyObject) else None
    return getattr(find, "__module__", "") == "django.contrib.auth.middleware"


def log_unreadable_user(error: Exception) -> None:
    """Log an error without its message."""
    # The view decides whether it needs the session.
    logger.error("The user of a request cannot be read; it counts as anonymous: %s", raised_at(error))
