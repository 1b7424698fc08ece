"""The plan of a caller, which a project's own code knows: what TIER_RESOLVER is called with, and what it may return."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import time
from inspect import isawaitable
from typing import Any, Final, NamedTuple, TypeVar

from asgiref.sync import async_to_sync
from django.apps import apps
from django.contrib.auth import get_user_model
from django.core.exceptions import ObjectDoesNotExist, ValidationError
from django.db.models import Model
from django.utils.module_loading import import_string

from . import tenants
from .engine.calendars import Anchor, zone_of

__all__ = ["Anchor", "CallerIdentity", "Plan"]

#: An attribute path begins with one of these; any other TIER_RESOLVER is the dotted path of a callable.
SUBJECTS: Final = ("user", "api_key")

_NOT_READ: Final[Any] = object()

T = TypeVar("T")


class InvalidPlan(ValueError):
    """A TIER_RESOLVER has returned something that is no plan; the message says what it may return."""


class Plan(NamedTuple):
    """What a TIER_RESOLVER may return instead of a tier alone.

    tier: its slug, or an object with a `slug`; `None` or a slug that does not exist = the default tier. anchor_day: the
    day on which the caller's months begin, 1 to 31. timezone: the caller's, in which they begin. starts_at: the time of
    day. `None` = as the limit says.
    """

    tier: Any = None
    anchor_day: int | None = None
    timezone: Any = None
    starts_at: time | None = None


class CallerIdentity:
    """Who the caller is, as a TIER_RESOLVER gets it. Each part is read at its first use; `None` = there is none.

    read: returns the caller's value for a name that rules are split by; of "user" its object, if that is known, and of
    "address" the whole address.
    """

    def __init__(self, user_id: str | None, api_key_hash: str | None, read: Callable[[str], Any]) -> None:
        #: The primary key of the authenticated user, as text.
        self.user_id = user_id
        #: The hash of the known API key; `None` also if only what API_KEY_RESOLVER returned is known.
        self.api_key_hash = api_key_hash
        #: The names that were read, besides user and hash: the answer depends on their values.
        self.names: dict[str, None] = {}
        self._read, self._user, self._api_key = read, _NOT_READ, _NOT_READ

    @property
    def user(self) -> Any:
        """The authenticated user; an object of the model from which its primary key comes."""
        if self._user is _NOT_READ:
            self._user = None if self.user_id is None else self._find_user(self.user_id)
        return self._user

    @property
    def api_key(self) -> Any:
        """What API_KEY_RESOLVER returned: a text, or the row of a model; without a resolver the hash."""
        if self._api_key is _NOT_READ:
            value = self.value("api_key")
            self._api_key = value and (_row_of(value) if names_row(value) else value)
        return self._api_key

    @property
    def address(self) -> str | None:
        """The caller's whole IP address."""
        return self.value("address")

    def value(self, name: str) -> str | None:
        """Return the caller's value for this name: one that rules are split by, such as "ip" or one of IDENTITIES."""
        if name == "user":
            return self.user_id
        self.names[name] = None
        found: str | None = self._read(name)
        return found

    def _find_user(self, key: str) -> Any:
        """Return the user of the request; a row of the database if that is unknown, or no row itself."""
        user = self._read("user")
        if isinstance(user, Model):
            return user
        pk = user_pk(key)
        found = _row_of(key) if pk is None else get_user_model()._default_manager.filter(pk=pk).first()
        return found or (None if isinstance(user, str) or ":" not in key else user)


def user_pk(user_id: str | None) -> Any:
    """Return the primary key from this text; `None` for no user, or one of another model than AUTH_USER_MODEL.

    Also `None` if tenants have their own users: these are assigned as partitions, with their schema.
    """
    return None if user_id is None or tenants.have_own_users() else pk_from(user_id)


def pk_from(text: str) -> Any:
    """Return the primary key of a user as this text has it; `None` = no user can have it."""
    with suppress(ValidationError):
        pk = get_user_model()._meta.pk.to_python(text)
        return None if isinstance(pk, int) and pk.bit_length() > 63 else pk  # above the maximum of databases
    return None


def row_key(row: Model) -> str:
    """Return the text that identifies a row of any model, such as "shop.ApiKey:7"."""
    return f"{row._meta.label}:{row.pk}"


def names_row(key: str) -> bool:
    """Return whether this is the `row_key` of a model that is installed, whether or not the row exists."""
    label, colon, _pk = key.partition(":")
    with suppress(LookupError, ValueError):
        return bool(colon) and apps.get_model(label)._meta.label == label
    return False


def _row_of(key: str) -> Any:
    """Return the row of this `row_key`; `None` if there is none, or the text is no such key."""
    label, _, pk = key.partition(":")
    with suppress(LookupError, ValueError, ValidationError):  # of no model, or no primary key of it
        return apps.get_model(label)._default_manager.filter(pk=pk).first()
    return None


def is_attribute_path(resolver: str) -> bool:
    """Return whether a TIER_RESOLVER is a path of attributes of the caller, such as "user.profile.plan"."""
    return resolver.startswith(tuple(f"{subject}." for subject in SUBJECTS))


def answer_of(resolver: str, identity: CallerIdentity) -> Any:
    """Return what this TIER_RESOLVER answers; it may be awaitable, then what it may read of the caller is read.

    Raises whatever the project's code raises.
    """
    if is_attribute_path(resolver):
        return _attribute(resolver, identity)
    answer = import_string(resolver)(identity)
    if isawaitable(answer):
        _ = identity.user, identity.api_key
    return answer


async def awaited(answer: Awaitable[T]) -> T:
    """Return the result of an awaitable, as a coroutine."""
    return await answer


def resolved(answer: Any) -> Any:
    """Return the answer, or the result of an awaitable one: it runs on the event loop if there is one."""
    return async_to_sync(awaited)(answer) if isawaitable(answer) else answer


def _attribute(path: str, identity: CallerIdentity) -> Any:
    """Return the value of the path; `None` if a row on the way does not exist, or the caller has no such object.

    Callers of another model than the users' may lack the attributes.
    """
    subject, *names = path.split(".")
    if subject == "api_key" and identity.api_key_hash is None and identity.value("api_key") is None:
        return None
    found = getattr(identity, subject)
    is_other = subject == "user" and not isinstance(found, get_user_model())
    try:
        for name in names:
            found = None if found is None else getattr(found, name)
    except ObjectDoesNotExist:
        return None
    except AttributeError:
        if not is_other:
            raise
        return None
    return found


def truth_of(answer: Any) -> bool:
    """Return the answer to a question of yes or no. Raises InvalidPlan, as for a method that was not called."""
    if answer is not None and not isinstance(answer, bool):
        raise InvalidPlan(f"must return True, False or None, not a {type(answer).__name__}")
    return bool(answer)


def plan_of(answer: Any) -> tuple[str | None, Anchor | None]:
    """Return the slug of the tier that a resolver has returned, and when the caller's months begin; `None` = unknown.

    Raises InvalidPlan.
    """
    try:
        plan = Plan(*answer) if isinstance(answer, tuple) else Plan(answer)
    except TypeError:
        raise InvalidPlan(f"must return at most the {len(Plan._fields)} values of a Plan") from None
    tier, day, zone, start = plan
    slug = getattr(tier, "slug", tier)
    if slug is not None and not isinstance(slug, str):
        name = type(tier).__name__
        raise InvalidPlan(f"must return a tier's slug, an object with a slug, a Plan or None, not a {name}")
    if day is not None and (type(day) is not int or not 1 <= day <= 31):
        raise InvalidPlan("must return an anchor day from 1 to 31, or None")
    zone = str(zone) if zone else None
    if zone is not None:
        try:
            zone_of(zone)
        except ValueError:
            raise InvalidPlan("must return the name of a time zone, such as Europe/Berlin, or None") from None
    if start is not None and (not isinstance(start, time) or start.tzinfo is not None or start.microsecond):
        raise InvalidPlan("must return the time of day in whole seconds, without a time zone, or None")
    anchor = Anchor(day, zone, start)
    return slug and str(slug), anchor if any(part is not None for part in anchor) else None
