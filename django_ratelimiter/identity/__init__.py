"""The identity of a request: user, address, API key, session, and other values that rules can be split by."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import date
from decimal import Decimal
from functools import lru_cache, partial
from typing import Any, Final
from uuid import UUID

from asgiref.sync import sync_to_async
from django.core.exceptions import DisallowedHost, SuspiciousOperation, SynchronousOnlyOperation
from django.core.signals import setting_changed
from django.dispatch import receiver
from django.http import HttpRequest
from django.utils.asyncio import async_unsafe
from django.utils.module_loading import import_string
from django.utils.translation import gettext as _

from ..conf import settings
from ..customers import Customer
from ..databases import spelled
from ..engine.base import Alias
from ..exceptions import raised_at
from ..logs import logger
from ..rules import cache, tiers
from ..rules.records import RuleRecord
from ..rules.ruleset import RuleSet
from ..rules.tiers import Entitlement, Note, is_known_api_key, resolve_api_key
from ..values.access import AccessList, AccessRecord, Names, parse_digest
from ..values.digests import MAX_CACHED, hash_api_key, keyed_digest
from ..values.partitions import UNREADABLE_BODY, encode_partition, is_address
from .body import UNREADABLE, BodyNotRead, fields_of, is_unread
from .proxies import client_address, client_ip, network_around
from .users import FAILED, UserNotLoaded, is_djangos_own, log_unreadable_user, ninjas_user, user_key, user_of

__all__ = ["BodyNotRead", "UserNotLoaded", "client_ip", "digest", "hash_api_key", "identify", "partition"]

#: Longer keys are never valid, and are not hashed.
MAX_API_KEY: Final = 256

#: Schemes of the header Authorization that carry an API key; "" = none, the key alone.
_KEY_SCHEMES: Final = ("api-key", "bearer", "token", "")

#: The maximum length of keys in Django's table of sessions.
MAX_SESSION_KEY: Final = 40
_SESSION_VALUE: Final = "_ratelimit"

#: What a customer is kept under that was not found by the request, but assumed. No identity has this name.
_ASSUMED: Final = "=customer"

#: Types of values from a path or a custom identity. The text of other types might differ with each request.
_VALUES: Final = (str, int, float, Decimal, UUID, date)

#: For calls that may block: on an event loop it raises SynchronousOnlyOperation.
_SESSION: Final = async_unsafe("The session of a request is read from its store; `limiter.acheck` does it in a thread.")
_OWN: Final = async_unsafe("Only the project knows how long this takes; `limiter.acheck` does it in a thread.")


class Identity:
    """The identity of a request. Each part is found at its first use; `None` = the request has none.

    On an event loop a part that may block raises SynchronousOnlyOperation; then read it in a thread.
    """

    __slots__ = ("_fields", "_request", "_user", "_values", "has_failed")

    def __init__(self, request: HttpRequest) -> None:
        self._request = request
        self._fields: Mapping[str, object] | None = None
        self._values: dict[str, str | None] = {}
        #: The user of the request, if only a coroutine has read it.
        self._user: Any = None
        #: A store or the project's code has failed to give a value, which counts as missing.
        self.has_failed: bool = False

    def value(self, name: str) -> str | None:
        """Return the request's value for this name, which is one of a rule's `partition_by`. No value is empty."""
        found = self._values.get(name, "")
        if found == "":  # not read yet
            find = _FINDERS.get(name)
            found = self._find(name) if find is None else find(self._request)
            if not found:
                self.has_failed, found = self.has_failed or found is FAILED, None
            self._values[name] = found
        return found

    def assume(self, name: str, value: str) -> None:
        """Set the request's value for this name, whatever the request contains."""
        self._values[name] = spelled(name, value) or None
        if name == "customer":
            self._values[_ASSUMED] = self._values[name]

    @property
    def user_id(self) -> str | None:
        """The primary key, as text, of the authenticated user; see `identity.users.user_key`."""
        return self.value("user")

    async def read_user(self) -> None:
        """Read the user without blocking the event loop, after UserNotLoaded."""
        try:
            if is_djangos_own(getattr(self._request, "user", None)):
                self._user = await self._request.auser()
                self._values["user"] = user_key(self._user, self._request)
            else:
                await sync_to_async(lambda: self.user_id)()
        except SynchronousOnlyOperation:
            raise
        except Exception as error:  # project code may raise anything
            log_unreadable_user(error)
            self.has_failed, self._values["user"] = True, None

    @property
    def ip(self) -> str | None:
        """The caller's address, or its network of IPV4_PREFIX or IPV6_PREFIX bits."""
        return self.value("ip")

    @property
    def address(self) -> str | None:
        """The caller's whole address, for access entries."""
        return client_address(self._request)

    @property
    def api_key(self) -> str | None:
        """The hash of the API key, if it is known: a made-up key is no identity."""
        value = self.value("api_key")
        if value is None or settings.API_KEY_RESOLVER is None:
            return value
        return hash_api_key(_raw_api_key(self._request) or "")

    @property
    def customer(self) -> Customer | None:
        """The customer, by the setting CUSTOMER."""
        if not settings.CUSTOMER:
            return None
        found = tiers.customers_of.get(self.value("user"), self.api_key, self._part)
        self.has_failed = self.has_failed or found is tiers.UNREAD_CUSTOMER
        return found.customer

    @property
    def customer_label(self) -> str | None:
        """The label of the customer, if that was found out for this request: nothing is asked for it."""
        if not settings.CUSTOMER or not self._values.keys() >= {"user", "api_key"}:
            return None
        with suppress(SynchronousOnlyOperation):
            found = tiers.customers_of.cached(self.value("user"), self.api_key, self._part).customer
            return found and found.label
        return None

    def entitlement(self, rules: RuleSet, note: Note | None = None) -> Entitlement:
        """Return what the caller may have. note: see `rules.tiers.entitlement_for`."""
        if rules.is_copy:  # assignments are not in it
            self.has_failed = True
        return cache.entitlement_for(
            rules, self.value("user"), self.api_key, partial(partition, self), self._part, note
        )

    def is_exempt(self, *, reads: bool = True) -> bool | None:
        """Return whether EXEMPT exempts the caller; `None` = it failed. reads: False = only if the user was read."""
        by = "api_key" if str(settings.EXEMPT).startswith("api_key.") else "user"
        if settings.EXEMPT is None or not (reads or by in self._values):
            return False
        found = tiers.exemptions.get(self.user_id if by == "user" else None, self.api_key, self._part)
        self.has_failed = self.has_failed or found is None
        return found

    def _part(self, name: str) -> Any:
        """Return what a `plans.CallerIdentity` reads of the caller."""
        if name == "user":
            user = self._user or getattr(self._request, "user", None)
            return user if getattr(user, "is_authenticated", False) else ninjas_user(self._request) or user
        if name == "customer":
            return self._values.get(_ASSUMED)
        return self.address if name == "address" else self.value(name)

    @property
    def awaits_authentication(self) -> bool:
        """True if the request has unchecked credentials, and neither a user nor a known API key."""
        return "HTTP_AUTHORIZATION" in self._request.META and self.user_id is None and self.api_key is None

    @property
    def has_unread_body(self) -> bool:
        """True if the request has a body that `field:NAME` would have to read or parse."""
        return self._fields is None and is_unread(self._request)

    @property
    def has_unreadable_body(self) -> bool:
        """True if the caller has sent a body from which `field:NAME` cannot be read here, but a view may read it."""
        if self._fields is None:
            self._fields = fields_of(self._request)
        return self._fields is UNREADABLE

    def _find(self, name: str) -> str | None:
        if is_address(name):
            return network_around(client_address(self._request), name)
        if name == "customer":
            customer = self.customer
            return customer and customer.value
        kind, colon, own = name.partition(":")
        if not colon:
            return _own(self._request, settings.IDENTITIES.get(name), f"The identity {name}")
        if kind == "header":
            return _header(self._request, own)
        if kind == "path":
            return _path(self._request, own)
        if kind == "query":
            return _query(self._request, own)
        if kind == "cookie":
            return self._request.COOKIES.get(own, "").strip()
        if self._fields is None:
            self._fields = fields_of(self._request)
        return _field(name, self._fields.get(own))


def identify(request: HttpRequest) -> Identity:
    """Return the identity of a Django request. Nothing is read yet."""
    return Identity(request)


def partition(identity: Identity, names: Iterable[str]) -> str | None:
    """Return the value that splits a rule's counters, such as "user:42|ip:203.0.113.7"; "" if there are no names.

    names: what a rule may be split by. `None` if the identity lacks one of them. Two identities never share a value.
    """
    parts = []
    for name in names:
        value = identity.value(name)
        if value is None:
            return None
        parts.append((name, value))
    return encode_partition(parts)


def digest(value: str) -> Alias:
    """Return the digest of a partition, as used in the names of keys: 22 characters, keyed with HASH_KEY.

    It has a tail if REVEAL lets staff see the partition.
    """
    made = keyed_digest if len(value) <= MAX_CACHED else keyed_digest.__wrapped__
    return made(settings.HASH_KEY, value, settings.REVEAL)


@lru_cache(maxsize=16_384)
def source_digest(hash_key: bytes, name: str, value: str) -> str:
    """Return the digest of a partition by one name. The key is the value of the setting."""
    return keyed_digest.__wrapped__(hash_key, encode_partition([(name, value)]), settings.REVEAL, (name,))


@receiver(setting_changed)
def _forget_digests(**_signal: object) -> None:
    """Forget the digests whose tails were made by another REVEAL."""
    source_digest.cache_clear()


def is_of_unreadable(caller: str | None) -> bool:
    """Return whether this digest stands for all requests whose body cannot be read."""
    return caller == digest(UNREADABLE_BODY)


def message_for(rule: RuleRecord, caller: str | None) -> str:
    """Return what a rule says to a caller, by digest, whom it rejects; "" = the usual text."""
    if rule.message or not (rule.counts_unreadable and is_of_unreadable(caller)):
        return rule.message
    return _("The body of this request could not be read, and there have been too many such requests.")


def digests(value: str) -> list[str]:
    """Return the digest of a partition, and those with earlier keys: HASH_KEY_FALLBACKS."""
    return [digest(value), *(keyed_digest(key, value) for key in settings.HASH_KEY_FALLBACKS)]


def _digests_by(identity: Identity, names: Sequence[str]) -> list[str]:
    """Return the `digests` of a request as counted by these names; none if it lacks a value."""
    value = partition(identity, names)
    return [] if value is None else digests(value)


def access_entry_for(entries: AccessList, identity: Identity | None) -> AccessRecord | None:
    """Return the access entry of the caller. Computes only the identities that entries use."""
    if identity is None or not entries:
        return None
    return entries.lookup(
        identity.address if "ip" in entries.kinds else None,
        identity.user_id if "user" in entries.kinds else None,
        identity.api_key if "api_key" in entries.kinds else None,
        digests_of=lambda names: _digests_by(identity, names),
        customer=identity.value("customer") if "customer" in entries.kinds else None,
    )


def denied_as(identity: Identity, record: AccessRecord) -> tuple[Names, str] | None:
    """Return by what an access entry has matched a request, and the request's digest by it; `None` = it has none."""
    for names in record.counted_by:
        value = partition(identity, names)
        if value is not None and (record.kind != "digest" or parse_digest(record.value)[1] in digests(value)):
            return names, digest(value)
    return None


def session_value(session: Any) -> str | None:
    """Return the key of a session that exists in its store and is not empty.

    A longer key than Django's stores have is the session's content, as in signed cookies, and changes with it. Then it
    is a value in the session: the digest of the first key, so that a caller that sends the same cookie again has it.
    """
    if not session.keys():
        return None
    key: str | None = session.session_key
    if key is None or len(key) <= MAX_SESSION_KEY:
        return key
    if _SESSION_VALUE not in session:
        session[_SESSION_VALUE] = str(digest(key))  # a project may pickle it
    return str(session[_SESSION_VALUE])


def _session(request: HttpRequest) -> str | None:
    """Return the `session_value` of a request's session. A cookie alone is not enough."""
    session: Any = getattr(request, "session", None)
    if session is None:
        return None
    try:
        if not hasattr(session, "_session_cache"):
            _SESSION(session.keys)()
        return session_value(session)
    except SynchronousOnlyOperation:
        raise
    except Exception as error:  # session stores may raise anything
        logger.error("The session of a request cannot be read; it counts as missing: %s", raised_at(error))
        return FAILED


def _api_key(request: HttpRequest) -> str | None:
    """Return the value of a known API key: what API_KEY_RESOLVER returns, else its hash."""
    raw = _raw_api_key(request)
    if raw is None:
        return None
    address = partial(client_ip, request)
    if settings.API_KEY_RESOLVER is not None:
        return resolve_api_key(raw, address)
    hashed = hash_api_key(raw)
    return hashed if is_known_api_key(hashed, address) else None


def _raw_api_key(request: HttpRequest) -> str | None:
    field = meta_name(settings.API_KEY_HEADER)
    raw: str = (request.META.get(field) or "").strip()
    if field == "HTTP_AUTHORIZATION":
        scheme, _, credentials = raw.rpartition(" ")
        raw = credentials if scheme.strip().lower() in _KEY_SCHEMES else ""
    return raw if raw and len(raw) <= MAX_API_KEY and raw.isascii() else None


def _header(request: HttpRequest, name: str) -> str | None:
    value: str | None = request.META.get(meta_name(name))
    return value.strip() if value else None


def host_of(request: HttpRequest) -> str | None:
    """Return the host of a request, in lower case and without its port; `None` if ALLOWED_HOSTS does not allow it."""
    try:
        return spelled("host", request.get_host())
    except DisallowedHost:
        return None


def _query(request: HttpRequest, name: str) -> str | None:
    """Return the last value of a parameter. A query that Django cannot read has none; the view gets Django's error."""
    try:
        value: str = request.GET.get(name, "")
    except SuspiciousOperation:  # too many parameters
        return None
    return value.strip()


def _path(request: HttpRequest, name: str) -> str | None:
    kwargs = getattr(request.resolver_match, "kwargs", None) or {}  # a test's stand-in may lack it
    return _text(kwargs.get(name), f"The identity path:{name}")


def _field(name: str, value: object) -> str | None:
    """Return a field's value: a JSON number as in a form, no list or object."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return spelled(name, str(value)) if isinstance(value, str | int | float) else None


def _own(request: HttpRequest, path: str | None, name: str) -> str | None:
    """Return the result of a project's callable for the request; `None` if there is none, FAILED if it fails."""
    if path is None:
        return None
    try:
        return _text(_OWN(_imported(path))(request), name)
    except SynchronousOnlyOperation:
        raise
    except Exception as error:  # the project's own code
        logger.error("%s failed; it counts as missing: %s", name, raised_at(error))
        return FAILED


def _text(value: object, name: str) -> str | None:
    if value is None or isinstance(value, _VALUES):
        return None if value is None else str(value)
    logger.error("%s is of type %s, not a text; it counts as missing.", name, type(value).__name__)
    return None


_FINDERS: Final[Mapping[str, Callable[[HttpRequest], str | None]]] = {
    "user": user_of,
    "ip": client_ip,
    "api_key": _api_key,
    "session": _session,
    "host": host_of,
}


@lru_cache(maxsize=64)
def meta_name(header: str) -> str:
    """Return the name of a request header in META."""
    name = header.upper().replace("-", "_")
    return name if name in ("CONTENT_TYPE", "CONTENT_LENGTH") else f"HTTP_{name}"


@lru_cache(maxsize=64)
def _imported(path: str) -> Callable[[HttpRequest], object]:
    found: Callable[[HttpRequest], object] = import_string(path)
    return found
