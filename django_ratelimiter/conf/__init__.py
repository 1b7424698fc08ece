"""The settings: one dict, `RATELIMITER`, read at first use. Only this module reads Django's own settings."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed

from ..values.partitions import IDENTITIES, is_identity
from .values import (
    DOTTED,
    FORWARDED_FIELDS,
    HEADER_FAMILIES,
    HEADER_SWITCHES,
    MAX_PROXIES,
    RETENTION,
    TrustedProxies,
    families,
    fields_of_bodies,
    flag,
    identities,
    identity_names,
    number,
    one_of,
    paths,
    proxies,
    retention,
    text,
    trusted_identities,
    whole_number,
)

__all__ = [
    "ENTRIES",
    "FORWARDED_FIELDS",
    "HEADER_FAMILIES",
    "HEADER_SWITCHES",
    "MAX_PROXIES",
    "RETENTION",
    "Entry",
    "Problem",
    "Settings",
    "TrustedProxies",
    "asset_paths",
    "django_setting",
    "is_secret",
    "problems",
    "settings",
]

logger = logging.getLogger("django_ratelimiter")


class Entry(NamedTuple):
    """Default and reader of one setting of `RATELIMITER`.

    read: converts the written value to that of the attribute; its ValueError says what would be right.
    required: an invalid value raises instead of being replaced by the default.
    """

    default: object
    read: Callable[[Any], object]
    required: bool = False


class Problem(NamedTuple):
    """One error in `RATELIMITER`: which setting, what is wrong, and what would be right."""

    entry: str
    wrong: str
    right: str


def _hash_key(value: Any) -> bytes:
    """Return the key of partition digests: at most 64 bytes, the maximum of BLAKE2b."""
    if value is None:
        value = f"django_ratelimiter.partitions:{django_settings.SECRET_KEY}"
    if not isinstance(value, str | bytes) or not value:
        raise ValueError("None, or a secret as text or bytes")
    return blake2b(value.encode() if isinstance(value, str) else value).digest()


def _revealed(value: Any) -> tuple[str, ...]:
    """Return the names of identities that staff may see: of none whose values are credentials."""
    names = identity_names(value)
    if secrets := list(filter(is_secret, names)):
        raise ValueError(f"a list of identities without {', '.join(secrets)}: whoever sees their values can use them")
    return names


def has_identity(name: str) -> bool:
    """Return whether this project has an identity of this name."""
    return is_identity(name) and (not name.isidentifier() or name in IDENTITIES or name in settings.IDENTITIES)


def is_secret(name: str) -> bool:
    """Return whether an identity's values are credentials: these must not be in URLs, logs or stores."""
    kind, _, field = name.upper().replace("-", "_").partition(":")
    secret = ("AUTHORIZATION", "PROXY_AUTHORIZATION", "COOKIE", settings.API_KEY_HEADER.upper().replace("-", "_"))
    return name == "session" or (kind == "HEADER" and field in secret)


ENTRIES: Final[Mapping[str, Entry]] = {
    "ENABLED": Entry(True, flag),
    "ENGINE": Entry(None, text(DOTTED, "None, or the dotted path of a callable", optional=True), True),
    "CACHE_ALIAS": Entry(None, text(".+", "None, or the name of an entry of CACHES", optional=True), True),
    "NAMESPACE": Entry("rl", text(r"[\w.-]{1,64}", "1 to 64 letters, digits, or any of . _ -"), True),
    "SHARDS": Entry(64, whole_number(1, 1024), True),
    "CLOCK": Entry("server", one_of("server", "client"), True),
    "DEADLINE_MS": Entry(50.0, number(1, 60_000, "milliseconds, from 1 to 60000")),
    "VERSION_CHECK_INTERVAL": Entry(1.0, number(0, 3600, "seconds, from 0 (ask each time) to 3600")),
    "RULES_MAX_AGE": Entry(10.0, number(0, 3600, "seconds, above 0 and at most 3600", above=True)),
    "TIER_CACHE_SECONDS": Entry(5.0, number(0, 3600, "seconds, from 0 (no caching) to 3600")),
    "API_KEY_HEADER": Entry("X-API-Key", text(r"[A-Za-z0-9-]+", "the name of a request header")),
    "API_KEY_RESOLVER": Entry(None, text(DOTTED, "None, or the dotted path of a callable", optional=True)),
    "API_KEY_FORM": Entry(None, text(DOTTED, "None, or the dotted path of a callable", optional=True)),
    "TIER_RESOLVER": Entry(None, text(DOTTED, "None, or the dotted path of a callable", optional=True)),
    "IDENTITIES": Entry({}, identities),
    "TRUSTED_IDENTITIES": Entry((), trusted_identities),
    "EXACT_FIELDS": Entry((), fields_of_bodies),
    "TRUSTED_PROXIES": Entry((), proxies, True),
    "IPV4_PREFIX": Entry(32, whole_number(1, 32)),
    "IPV6_PREFIX": Entry(64, whole_number(1, 128)),
    "LOCAL_SHARE": Entry(0.5, number(0, 1, "a share, above 0 and at most 1", above=True)),
    "DENIAL_MEMORY": Entry(0.0, number(0, 60, "seconds, from 0 (none) to 60")),
    "HASH_KEY": Entry(None, _hash_key, True),
    "EXEMPT_PATHS": Entry(None, paths),
    "HEADERS": Entry(HEADER_FAMILIES, families),
    "RESPONSE": Entry(
        None,
        text(
            rf"{DOTTED}|\S.*\.html",
            'None, the dotted path of a callable, or a template\'s name in ".html"',
            optional=True,
        ),
    ),
    "RETENTION": Entry(RETENTION, retention),
    "REVEAL": Entry(("user",), _revealed),
}


class Settings:
    """The settings in `RATELIMITER` as typed attributes, each read once and cached until a setting changes.

    An invalid setting is logged as an error, and its default is used. `ImproperlyConfigured` is raised if the
    default would use other counters or trust other callers: ENGINE, CACHE_ALIAS, NAMESPACE, SHARDS, CLOCK,
    HASH_KEY, TRUSTED_PROXIES, and a `RATELIMITER` that is not a dict.
    """

    #: False: nothing is decided, counted or sent.
    ENABLED: bool
    #: Dotted path of a callable without arguments that returns the Engine; None = by CACHE_ALIAS.
    ENGINE: str | None
    #: A django-redis entry of CACHES; None = the memory engine of each process.
    CACHE_ALIAS: str | None
    #: The prefix of all keys.
    NAMESPACE: str
    #: The number of shards that the keys are spread over in a Redis Cluster.
    SHARDS: int
    #: The clock that decisions use: "server", or "client" for servers that do not allow TIME in scripts.
    CLOCK: str
    #: Maximum milliseconds that a decision waits for Redis; after that, each rule's failure policy decides.
    DEADLINE_MS: float
    #: Seconds after which a request that no rule matches asks for a newer rule set; 0 = each time.
    VERSION_CHECK_INTERVAL: float
    #: Seconds after which rules are read from the database again while Redis is out of reach.
    RULES_MAX_AGE: float
    #: Maximum seconds until a changed tier assignment takes effect; 0 = at once.
    TIER_CACHE_SECONDS: float
    #: The request header with the API key.
    API_KEY_HEADER: str
    #: Dotted path of a callable(raw key) that returns the identity of a known key; None = keys of tier assignments.
    API_KEY_RESOLVER: str | None
    #: Dotted path of a callable(raw key) that returns whether API_KEY_RESOLVER can know the key; None = always asked.
    API_KEY_FORM: str | None
    #: Dotted path of a callable(request) that returns the slug of a tier; None = tier assignments are used.
    TIER_RESOLVER: str | None
    #: A project's own identities: dotted paths of callables that take the request, by name.
    IDENTITIES: Mapping[str, str]
    #: The identities that no caller can choose, besides user, ip, api_key and session.
    TRUSTED_IDENTITIES: tuple[str, ...]
    #: The identities of the body whose values differ in case, too.
    EXACT_FIELDS: tuple[str, ...]
    #: The proxies that are trusted to report the caller's address; written as networks, "unix", or their number.
    TRUSTED_PROXIES: TrustedProxies
    #: Bits of an address that distinguish callers.
    IPV4_PREFIX: int
    IPV6_PREFIX: int
    #: The share of each quota that one process allows while Redis is out of reach.
    LOCAL_SHARE: float
    #: Maximum seconds for which a process repeats a rejection without calling Redis; 0 = not at all.
    DENIAL_MEMORY: float
    #: The key of the digests that replace callers in key names, 64 bytes; derived from SECRET_KEY if None.
    HASH_KEY: bytes
    #: Path prefixes that no rule applies to; None = the admin, health checks, and `asset_paths`.
    EXEMPT_PATHS: tuple[str, ...] | None
    #: The families of response fields to send, and "expose".
    HEADERS: tuple[str, ...]
    #: The response to rejections: dotted path of a callable(request, decision), or a template; None = our own.
    RESPONSE: str | None
    #: Days for which usage is kept, by granularity, and versions of the rule set; None = forever.
    RETENTION: Mapping[str, int | None]
    #: The identities whose values staff with the permission can see instead of digests.
    REVEAL: tuple[str, ...]

    if not TYPE_CHECKING:  # mypy must only accept the names above

        def __getattr__(self, name: str) -> object:
            if name not in ENTRIES:
                raise AttributeError(f"RATELIMITER has no entry {name}")
            value = _read(name)
            self.__dict__[name] = value  # cached: later reads do not call this method
            return value

    def forget(self, **_signal: object) -> None:
        """Drop the cached settings."""
        self.__dict__.clear()


settings = Settings()
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


def _read(name: str) -> object:
    written = _written()
    if not isinstance(written, dict):
        raise ImproperlyConfigured(f"RATELIMITER must be a dict, not a {type(written).__name__}.")
    entry = ENTRIES[name]
    value = written.get(name, entry.default)
    try:
        return entry.read(value)
    except ValueError as error:
        message = f"RATELIMITER[{name!r}] {_shown(name, value)}; it must be {error}."
        if entry.required:
            raise ImproperlyConfigured(message) from None
        logger.error("%s The default, %r, is used.", message, entry.default)
        return entry.read(entry.default)


def _written() -> Any:
    return getattr(django_settings, "RATELIMITER", {})


def _shown(name: str, value: object) -> str:
    """Return the description of an invalid value, without secrets."""
    return f"is of type {type(value).__name__}" if name == "HASH_KEY" else f"is {value!r}"
