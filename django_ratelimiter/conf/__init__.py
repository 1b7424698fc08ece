"""The settings: one dict, `RATELIMITER`, read at first use. Only this module reads Django's own settings."""

from __future__ import annotations

import re
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, Final, Generic, NamedTuple, TypeVar

from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.utils.translation import gettext as _

from ..engine.base import Alias
from ..logs import logger
from ..values.addresses import addresses_of, shown_address
from ..values.digests import alias_of, are_revealed, keyed_digest, opened
from ..values.partitions import EXACT, IDENTITIES, is_identity, partition_names, value_in
from . import values

T = TypeVar("T")


class Entry(Generic[T]):
    """One setting of `RATELIMITER`, as an attribute of `Settings`.

    read: converts the written value to that of the attribute; its ValueError says what would be right.
    required: an invalid value raises instead of being replaced by the default.
    """

    def __init__(self, default: object, read: Callable[[Any], T], *, required: bool = False) -> None:
        self.default, self.read, self.required = default, read, required

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name
        ENTRIES[name] = self

    def __get__(self, settings: Settings, owner: type) -> T:
        value = settings.__dict__[self.name] = self._value()  # cached: later reads do not call this method
        return value

    def _value(self) -> T:
        written = _written()
        if not isinstance(written, dict):
            raise ImproperlyConfigured(f"RATELIMITER must be a dict, not a {type(written).__name__}.")
        value = written.get(self.name, self.default)
        try:
            return self.read(value)
        except ValueError as error:
            message = f"RATELIMITER[{self.name!r}] {_shown(self.name, value)}; it must be {error}."
            if self.required:
                raise ImproperlyConfigured(message) from None
            logger.error("%s The default, %r, is used.", message, self.default)
            return self.read(self.default)


#: All settings by name.
ENTRIES: Final[dict[str, Entry[Any]]] = {}


class Problem(NamedTuple):
    """One error in `RATELIMITER`: which setting, what is wrong, and what would be right."""

    entry: str
    wrong: str
    right: str


def _hash_key(value: Any) -> bytes:
    """Return the key of partition digests: 64 bytes, as AES-SIV takes them."""
    if value is None:
        value = _derived(django_settings.SECRET_KEY)
    if not isinstance(value, str | bytes) or not value:
        raise ValueError("None, or a secret as text or bytes")
    return blake2b(value.encode() if isinstance(value, str) else value).digest()


def _hash_keys(value: Any) -> tuple[bytes, ...]:
    """Return earlier keys of partition digests: if there are none, those of SECRET_KEY_FALLBACKS for a derived key."""
    if value is None:
        is_derived = _written().get("HASH_KEY") is None
        value = [_derived(key) for key in django_settings.SECRET_KEY_FALLBACKS] if is_derived else []
    if not isinstance(value, list | tuple):
        raise ValueError("None, or a list of secrets as text or bytes; None in it is the key derived from SECRET_KEY")
    return tuple(map(_hash_key, value))


def lacks_fallbacks() -> bool:
    """Return whether HASH_KEY is derived from SECRET_KEY, and HASH_KEY_FALLBACKS lacks one of SECRET_KEY_FALLBACKS."""
    kept, derived = {*settings.HASH_KEY_FALLBACKS}, map(_derived, django_settings.SECRET_KEY_FALLBACKS)
    if _written().get("HASH_KEY") is not None or _written().get("HASH_KEY_FALLBACKS") is None:
        return False
    return not {*map(_hash_key, derived)} <= kept


def _derived(secret_key: Any) -> str:
    return f"django_ratelimiter.partitions:{secret_key}"


def _revealed(value: Any) -> tuple[str, ...]:
    """Return the names of identities that staff may see: of none whose values are credentials."""
    names = values.identity_names(value)
    if secrets := list(filter(is_secret, names)):
        raise ValueError(f"a list of identities without {', '.join(secrets)}: whoever sees their values can use them")
    return names


def is_alias(text: str) -> bool:
    """Return whether a text is an alias with a tail, made with one of our keys."""
    return opened((settings.HASH_KEY, *settings.HASH_KEY_FALLBACKS), alias_of(text)) is not None


def read_alias(alias: str) -> str | None:
    """Return the partition of an alias; `None` = it cannot be read, or REVEAL does not allow it."""
    found = opened((settings.HASH_KEY, *settings.HASH_KEY_FALLBACKS), alias)
    return found if found is not None and are_revealed(partition_names(found), settings.REVEAL) else None


def caller_in(alias: str) -> tuple[str, str]:
    """Return by what exact usage knows the caller of an alias: identity and value; "" and the digest if unreadable."""
    text = opened((settings.HASH_KEY, *settings.HASH_KEY_FALLBACKS), alias)
    name = "" if text is None else partition_names(text)[0]
    return (name, value_in(str(text))) if name in EXACT else ("", str(alias))


def aliases_of(alias: Alias) -> list[Alias]:
    """Return the aliases of the same caller by HASH_KEY and its fallbacks; only this one if it cannot be read."""
    value = read_alias(alias) if settings.HASH_KEY_FALLBACKS else None
    keys = () if value is None else (settings.HASH_KEY, *settings.HASH_KEY_FALLBACKS)
    return [keyed_digest(key, str(value), settings.REVEAL) for key in keys] or [alias]


def has_identity(name: str) -> bool:
    """Return whether this project has an identity of this name: the customer only if CUSTOMER leads to it."""
    if name == "customer":
        return bool(settings.CUSTOMER)
    return is_identity(name) and (not name.isidentifier() or name in IDENTITIES or name in settings.IDENTITIES)


def identities() -> list[str]:
    """Return the identities of this project, without those like "header:NAME"."""
    return [*filter(has_identity, IDENTITIES), *settings.IDENTITIES]


def unknown_identity(name: str) -> str:
    """Return the error for a name that no identity of this project has."""
    return _("Unknown identity %(name)r. You can define it in RATELIMITER['IDENTITIES'].") % {"name": name}


def is_secret(name: str) -> bool:
    """Return whether an identity's values are credentials: these must not be in URLs, logs or stores."""
    kind, _, field = name.upper().replace("-", "_").partition(":")
    secret = ("AUTHORIZATION", "PROXY_AUTHORIZATION", "COOKIE", settings.API_KEY_HEADER.upper().replace("-", "_"))
    return name == "session" or kind == "COOKIE" or (kind == "HEADER" and field in secret)


_RESPONSES: Final = 'None, the dotted path of a callable, or a template\'s name in ".html"'
_callable: Final = values.optional(values.text(values.DOTTED, "None, or the dotted path of a callable"))
_PATH: Final = 'None, a path such as "user.is_staff" or "user.profile.plan", or the dotted path of a callable'
_path: Final = values.optional(values.text(values.DOTTED, _PATH))


class Settings:
    """The settings in `RATELIMITER` as typed attributes, each read once and cached until a setting changes.

    An invalid setting is logged as an error, and its default is used. `ImproperlyConfigured` is raised if the
    default would use other counters or trust other callers: ENGINE, CACHE_ALIAS, NAMESPACE, SHARDS, CLOCK,
    HASH_KEY, TRUSTED_PROXIES, and a `RATELIMITER` that is not a dict.
    """

    #: False: nothing is decided, counted or sent.
    ENABLED = Entry(True, values.flag)
    #: Dotted path of a callable without arguments that returns the Engine; None = by CACHE_ALIAS.
    ENGINE = Entry(None, _callable, required=True)
    #: A django-redis entry of CACHES; None = the memory engine of each process.
    CACHE_ALIAS = Entry(
        None, values.optional(values.text(".+", "None, or the name of an entry of CACHES")), required=True
    )
    #: The prefix of all keys.
    NAMESPACE = Entry("rl", values.text(r"[\w.-]{1,64}", "1 to 64 letters, digits, or any of . _ -"), required=True)
    #: The number of shards that the keys are spread over in a Redis Cluster.
    SHARDS = Entry(64, values.whole_number(1, 1024), required=True)
    #: The clock that decisions use: "server", or "client" for servers that do not allow TIME in scripts.
    CLOCK = Entry("server", values.one_of("server", "client"), required=True)
    #: Maximum milliseconds that a decision waits for Redis; after that, each rule's failure policy decides.
    DEADLINE_MS = Entry(50.0, values.number(1, 60_000, "a number of milliseconds from 1 to 60000"))
    #: Seconds after which a request that no rule matches asks for a newer rule set; 0 = each time.
    VERSION_CHECK_INTERVAL = Entry(1.0, values.number(0, 3600, "a number of seconds from 0 (ask each time) to 3600"))
    #: Seconds after which rules are read from the database again while Redis is out of reach.
    RULES_MAX_AGE = Entry(10.0, values.number(0, 3600, "a number of seconds above 0 and at most 3600", above=True))
    #: Whether requests are allowed ("open") or rejected ("closed") while a process can read no rules anywhere.
    WITHOUT_RULES = Entry("open", values.one_of("open", "closed"))
    #: Maximum seconds until a changed tier assignment takes effect; 0 = at once.
    TIER_CACHE_SECONDS = Entry(5.0, values.number(0, 3600, "a number of seconds from 0 (no caching) to 3600"))
    #: The request header with the API key.
    API_KEY_HEADER = Entry("X-API-Key", values.text(r"[A-Za-z0-9-]+", "the name of a request header"))
    #: Dotted path of a callable(raw key) that returns the identity of a known key; None = keys of tier assignments.
    API_KEY_RESOLVER = Entry(None, _callable)
    #: Dotted path of a callable(raw key) that returns whether API_KEY_RESOLVER can know the key; None = always asked.
    API_KEY_FORM = Entry(None, _callable)
    #: Dotted path of a callable(request) that returns the slug of a tier; None = tier assignments are used.
    TIER_RESOLVER = Entry(None, _path)
    #: Paths of attributes or callables that lead to a caller's customer, a row of the project; the first one counts.
    CUSTOMER = Entry(None, values.customers)
    #: Path of an attribute of callers, or of a callable, that says whether a caller is exempt from all rules.
    EXEMPT = Entry(None, _path)
    #: Dotted path of a callable(row of a customer) that returns its callers: ("user", primary key), ("api_key", value).
    CUSTOMER_CALLERS = Entry(None, _callable)
    #: A project's own identities: dotted paths of callables that take the request, by name.
    IDENTITIES = Entry({}, values.identities)
    #: The identities that no caller can choose, besides user, ip, api_key, customer and session.
    TRUSTED_IDENTITIES = Entry((), values.trusted_identities)
    #: The identities of the body whose values differ in case, too.
    EXACT_FIELDS = Entry((), values.fields_of_bodies)
    #: The proxies that are trusted to report the caller's address; written as networks, "unix", or their number.
    TRUSTED_PROXIES = Entry((), values.proxies, required=True)
    #: Bits of an address that distinguish callers.
    IPV4_PREFIX = Entry(32, values.whole_number(1, 32))
    IPV6_PREFIX = Entry(64, values.whole_number(1, 128))
    #: The share of each quota that one process allows while Redis is out of reach.
    LOCAL_SHARE = Entry(0.5, values.number(0, 1, "a share, above 0 and at most 1", above=True))
    #: Maximum seconds for which a process repeats a rejection without calling Redis; 0 = not at all.
    DENIAL_MEMORY = Entry(0.0, values.number(0, 60, "a number of seconds from 0 (none) to 60"))
    #: The key of the digests that replace callers in key names, 64 bytes; derived from SECRET_KEY if None.
    HASH_KEY = Entry(None, _hash_key, required=True)
    #: Earlier HASH_KEYs, of aliases and of digests in access entries; None = derived from SECRET_KEY_FALLBACKS.
    HASH_KEY_FALLBACKS = Entry(None, _hash_keys)
    #: Path prefixes that no rule applies to; None = the admin, health checks, and `asset_paths`.
    EXEMPT_PATHS = Entry(None, values.optional(values.paths))
    #: The families of response fields to send, and "expose".
    HEADERS = Entry(values.HEADER_FAMILIES, values.families)
    #: The response to rejections: dotted path of a callable(request, decision), or a template; None = our own.
    RESPONSE = Entry(None, values.optional(values.text(rf"{values.DOTTED}|\S.*\.html", _RESPONSES)))
    #: Days for which usage is kept, by granularity, and of callers, addresses in it, and versions; None = forever.
    RETENTION = Entry(values.RETENTION, values.retention)
    #: The identities whose values staff with the permission can see, see `are_revealed`.
    REVEAL = Entry(["user", "ip", "api_key", "host", "customer"], _revealed)

    def forget(self, **_signal: object) -> None:
        """Drop the cached settings."""
        self.__dict__.clear()


settings: Settings = Settings()
setting_changed.connect(settings.forget, dispatch_uid="django_ratelimiter.conf")


def problems() -> list[Problem]:
    """Return all errors in `RATELIMITER`: unknown settings, invalid values, or not a dict at all."""
    written = _written()
    if not isinstance(written, dict):
        return [Problem("RATELIMITER", f"is a {type(written).__name__}", "a dict of entries")]
    found = []
    for name, value in written.items():
        entry = ENTRIES.get(name)
        if entry is None:
            found.append(Problem(str(name), "is unknown", f"one of {', '.join(ENTRIES)}"))
            continue
        try:
            entry.read(value)
        except ValueError as error:
            found.append(Problem(name, _shown(name, value), str(error)))
    return found


def django_setting(name: str, default: Any = None) -> Any:
    """Return one of Django's own settings; `default` if the project does not have it."""
    return getattr(django_settings, name, default)


def script_name() -> str:
    """Return FORCE_SCRIPT_NAME without a trailing slash; empty = it is not set."""
    return (django_setting("FORCE_SCRIPT_NAME") or "").rstrip("/")


def asset_paths() -> tuple[str, ...]:
    """Return STATIC_URL and MEDIA_URL if they are paths of this site, to compare with `request.path_info`.

    The root of the site is omitted, because it would include all paths.
    """
    root, paths = f"{script_name()}/", []
    for url in (_as_written("STATIC_URL"), _as_written("MEDIA_URL")):
        if not url or url.startswith(("http://", "https://", "//")):
            continue
        path = f"/{url.removeprefix(root)}" if url.startswith(root) else "" if url.startswith("/") else f"/{url}"
        if path not in ("", "/"):
            paths.append(path)
    return tuple(paths)


def _as_written(name: str) -> str | None:
    """Return a setting as the project wrote it. Django adds the prefix of the first request, and caches the result."""
    django_setting("DEBUG")  # loads the settings
    lazy: Any = django_settings
    value: str | None = getattr(lazy._wrapped, name, None)
    return value


def _written() -> Any:
    return getattr(django_settings, "RATELIMITER", {})


def _shown(name: str, value: object) -> str:
    """Return the description of an invalid value, without secrets."""
    return f"is of type {type(value).__name__}" if name.startswith("HASH_KEY") else f"is {value!r}"


#: In the names of options whose values are not shown.
_HIDDEN: Final = re.compile("auth|token|secret|pass|key(?!_prefix|_function)|cred|signature|user", re.I)
#: In a text: what may hold a password before the host of an address, or in its query.
_IN_ADDRESS: Final = re.compile(r"(?<=//)\S*(?=@)|(?<=\?)[^\s,'\"]+|(?<![^\s'\"(\[])[^\s'\"/]*:(?!//)\S*(?=@)")


def differing() -> dict[str, str]:
    """Return the settings in `RATELIMITER` that differ from their defaults, as text without secrets."""
    written = _written()
    if not isinstance(written, dict):
        return {"RATELIMITER": f"is a {type(written).__name__}"}
    return {
        str(name): without_secrets(value, name if name.startswith("HASH_KEY") else "")
        if name in ENTRIES
        else "is unknown"
        for name, value in written.items()
        if name not in ENTRIES or value != ENTRIES[name].default
    }


def without_secrets(value: Any, name: object = "") -> str:
    """Return a value as text, without what may be a secret by its name, or is a part of an address."""
    if _HIDDEN.search(str(name)) and value not in (None, ""):
        return "(hidden)"
    if name == "LOCATION":
        return ", ".join(shown_address(each) or "(hidden)" for each in addresses_of({name: value}))
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {without_secrets(each, key)}' for key, each in value.items())}}}"
    if isinstance(value, list | tuple | set | frozenset):
        return f"[{', '.join(map(without_secrets, value))}]"
    if isinstance(value, str | int | float | None):
        return _IN_ADDRESS.sub("(hidden)", str(value))
    return f"({type(value).__name__})"
