"""The plan and the customer of a caller, which a project's own code knows: what it is called with, and may return."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import time
from inspect import isawaitable
from typing import Any, NamedTuple, TypeVar

from asgiref.sync import async_to_sync, sync_to_async
from django.contrib.auth import get_user_model
from django.core.exceptions import ObjectDoesNotExist
from django.db.models import Model
from django.utils.functional import cached_property
from django.utils.module_loading import import_string

from . import customers, tenants
from .conf import settings
from .conf.values import CALLERS, SUBJECTS, is_attribute_path
from .databases import pk_of
from .engine.calendars import Anchor, zone_of
from .tenants import names_row, rows_named

__all__ = ["Anchor", "CallerIdentity", "Plan"]

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
    """Who the caller is, as TIER_RESOLVER and CUSTOMER get it. Each part is read at its first use; `None` = none.

    read: returns the caller's value for a name that rules are split by; of "user" its object, if that is known, of
    "address" the whole address, and of "customer" only the one that is known without asking the project, or its row.
    """

    def __init__(self, user_id: str | None, api_key_hash: str | None, read: Callable[[str], Any]) -> None:
        #: The primary key of the authenticated user, as text.
        self.user_id = user_id
        #: The hash of the known API key; `None` also if only what API_KEY_RESOLVER returned is known.
        self.api_key_hash = api_key_hash
        #: The names that were read, besides user and hash: the answer depends on their values.
        self.names: dict[str, None] = {}
        #: Reads one of them, without a note.
        self.read = read

    @cached_property
    def user(self) -> Any:
        """The authenticated user; an object of the model from which its primary key comes."""
        return None if self.user_id is None else self._find_user(self.user_id)

    @cached_property
    def api_key(self) -> Any:
        """What API_KEY_RESOLVER returned: a text, or the row of a model; without a resolver the hash."""
        value = self.value("api_key")
        return value and (rows_named([value]).get(value) if names_row(value) else value)

    @cached_property
    def customer(self) -> Any:
        """The caller's customer: the row to which CUSTOMER leads."""
        return resolved(customer_answer(self))

    @property
    def address(self) -> str | None:
        """The caller's whole IP address."""
        return self.value("address")

    def value(self, name: str) -> str | None:
        """Return the caller's value for this name: one that rules are split by, such as "ip" or one of IDENTITIES."""
        if name == "user":
            return self.user_id
        if name == "customer":
            return None if self.customer is None else customers.value_of(self.customer)
        self.names[name] = None
        found: str | None = self.read(name)
        return found

    def _find_user(self, key: str) -> Any:
        """Return the user of the request; a row of the database if that is unknown, or no row itself."""
        user = self.read("user")
        if isinstance(user, Model):
            return user
        pk = user_pk(key)
        found = rows_named([key]).get(key) if pk is None else get_user_model()._default_manager.filter(pk=pk).first()
        return found or (None if isinstance(user, str) or ":" not in key else user)


def user_pk(user_id: str | None) -> Any:
    """Return the primary key from this text; `None` for no user, or one of another model than AUTH_USER_MODEL.

    Also `None` if tenants have their own users: these are assigned as partitions, with their schema.
    """
    return None if user_id is None or tenants.have_own_users() else pk_of(get_user_model(), user_id)


def answer_of(resolver: str, identity: CallerIdentity, subjects: Sequence[str] = SUBJECTS) -> Any:
    """Return what a path or a callable answers; it may be awaitable, then what it may read of the caller is read.

    subjects: what paths begin with. Raises whatever the project's code raises.
    """
    if is_attribute_path(resolver, subjects):
        return _attribute(resolver, identity)
    answer = import_string(resolver)(identity)
    if isawaitable(answer):
        _ = [getattr(identity, each) for each in subjects]
    return answer


def customer_answer(identity: CallerIdentity) -> Any:
    """Return the row to which CUSTOMER leads, or an awaitable of it; see `answer_of`."""
    identity.names["customer"] = None
    known = identity.read("customer")
    if known is None:
        return _first_of(settings.CUSTOMER, identity)
    return known if isinstance(known, Model) else customers.row_of(known)


def _first_of(resolvers: Sequence[str], identity: CallerIdentity) -> Any:
    """Return the first answer that is not `None`, or an awaitable of it."""
    for number, resolver in enumerate(resolvers, 1):
        answer = answer_of(resolver, identity, CALLERS)
        if isawaitable(answer):
            return _first_awaited(answer, resolvers[number:], identity)
        if answer is not None:
            return answer
    return None


async def _first_awaited(answer: Awaitable[Any], others: Sequence[str], identity: CallerIdentity) -> Any:
    found = await answer
    if found is None and others:
        found = await sync_to_async(_first_of)(others, identity)  # it may ask the database
    return await found if isawaitable(found) else found


async def awaited(answer: Awaitable[T]) -> T:
    """Return the result of an awaitable, as a coroutine."""
    return await answer


def resolved(answer: Any) -> Any:
    """Return the answer, or the result of an awaitable one: it runs on the event loop if there is one."""
    return async_to_sync(awaited)(answer) if isawaitable(answer) else answer


def _attribute(path: str, identity: CallerIdentity) -> Any:
    """Return the value of the path; `None` if the caller has no such object. See `attribute_of`.

    Callers of another model than the users' may lack the attributes.
    """
    subject, *names = path.split(".")
    if subject == "api_key" and identity.api_key_hash is None and identity.value("api_key") is None:
        return None
    found = getattr(identity, subject)
    return attribute_of(found, names, may_lack=subject == "user" and not isinstance(found, get_user_model()))


def attribute_of(found: Any, names: Sequence[str], *, may_lack: bool = False) -> Any:
    """Return what these attributes lead to, one after the other; `None` if a row on the way does not exist.

    may_lack: a missing attribute is no error.
    """
    try:
        for name in names:
            found = None if found is None else getattr(found, name)
    except ObjectDoesNotExist:
        return None
    except AttributeError:
        if not may_lack:
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
