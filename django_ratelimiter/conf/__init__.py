"""The settings: one dict, `RATELIMITER`, read when it is asked for. The only module that reads Django's own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed

from .values import (
    DOTTED,
    FORWARDED_FIELDS,
    HEADER_FAMILIES,
    HEADER_SWITCHES,
    MAX_PROXIES,
    RETENTION,
    TrustedProxies,
    families,
    flag,
    identities,
    identity_names,
    number,
    one_of,
    paths,
    proxies,
    retention,
    text,
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
    "problems",
    "settings",
]

logger = logging.getLogger("django_ratelimiter")


class Entry(NamedTuple):
    """Default and reader of one entry of `RATELIMITER`.

    read: takes what was written and returns what the attribute holds; its ValueError says what would be right.
    required: without a right value nothing can work, so that access raises instead of taking the default.
    """

    default: object
    read: Callable[[Any], object]
    required: bool = False


class Problem(NamedTuple):
    """One thing wrong with `RATELIMITER`: which entry, what is wrong with it, what would be right."""

    entry: str
    wrong: str
    right: str


def _hash_key(value: Any) -> bytes:
    """Return the key of partition digests, in the 64 bytes that BLAKE2b takes at most."""
    if value is None:
        value = f"django_ratelimiter.partitions:{django_settings.SECRET_KEY}"
    if not isinstance(value, str | bytes) or not value:
        raise ValueError("None, or a secret as text or bytes")
    return blake2b(value.encode() if isinstance(value, str) else value).digest()


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
    "TIER_RESOLVER": Entry(None, text(DOTTED, "None, or the dotted path of a callable", optional=True)),
    "IDENTITIES": Entry({}, identities),
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
    "REVEAL": Entry(("user",), identity_names),
}


class Settings:
    """The entries of `RATELIMITER` as typed attributes, each read once and kept until a setting changes.

    A wrong entry is logged as an error and its default stands in; `ImproperlyConfigured` is raised where a
    default would count somewhere else or believe somebody else: ENGINE, CACHE_ALIAS, NAMESPACE, SHARDS, CLOCK,
    HASH_KEY, TRUSTED_PROXIES, and a `RATELIMITER` that is no dict.
    """

    #: False: nothing is decided, counted or sent.
    ENABLED: bool
    #: Dotted path of a callable without arguments that returns the Engine; None = by CACHE_ALIAS.
    ENGINE: str | None
    #: A django-redis entry of CACHES; None = the memory engine, which one process has to itself.
    CACHE_ALIAS: str | None
    #: What the names of all keys start with.
    NAMESPACE: str
    #: Among how many shards the keys in a Redis Cluster are spread.
    SHARDS: int
    #: Whose time decides: "server", or "client" for servers that refuse TIME in scripts.
    CLOCK: str
    #: Milliseconds that a decision waits for Redis at most; then each rule's failure policy decides.
    DEADLINE_MS: float
    #: Seconds after which a request that meets no rule asks for a newer rule set; 0 = each time.
    VERSION_CHECK_INTERVAL: float
    #: Seconds after which rules are read from the database again while Redis is out of reach.
    RULES_MAX_AGE: float
    #: Seconds after which a changed tier assignment is obeyed at the latest; 0 = at once.
    TIER_CACHE_SECONDS: float
    #: The request header that holds an API key.
    API_KEY_HEADER: str
    #: Dotted path of a callable(raw key) that returns what a known key counts as; None = what assignments know.
    API_KEY_RESOLVER: str | None
    #: Dotted path of a callable(request) that returns the slug of a tier, in the place of assignments; None = these.
    TIER_RESOLVER: str | None
    #: Identities of the project's own: dotted paths of callables that take the request, by name.
    IDENTITIES: Mapping[str, str]
    #: The proxies whose word about the client's address is taken; written as networks, "unix", or their number.
    TRUSTED_PROXIES: TrustedProxies
    #: Bits of an address that tell clients apart.
    IPV4_PREFIX: int
    IPV6_PREFIX: int
    #: The share of each quota that one process grants while Redis is out of reach.
    LOCAL_SHARE: float
    #: Seconds for which a process repeats a refusal without asking, at most; 0 = it always asks.
    DENIAL_MEMORY: float
    #: The key of the digests that stand for people in key names, 64 bytes; made from SECRET_KEY if None.
    HASH_KEY: bytes
    #: Path prefixes that no rule touches; None = the admin, health views, and what `asset_paths` says.
    EXEMPT_PATHS: tuple[str, ...] | None
    #: The families of response fields to send, and "expose".
    HEADERS: tuple[str, ...]
    #: What makes refusals: the dotted path of a callable(request, decision), or the page's template; None = our own.
    RESPONSE: str | None
    #: Days for which usage is kept, by granularity, and versions of the rule set; None = forever.
    RETENTION: Mapping[str, int | None]
    #: The identities whose values staff with the permission may see instead of digests.
    REVEAL: tuple[str, ...]

    if not TYPE_CHECKING:  # mypy shall know the names above and no others

        def __getattr__(self, name: str) -> object:
            if name not in ENTRIES:
                raise AttributeError(f"RATELIMITER has no entry {name}")
            value = _read(name)
            self.__dict__[name] = value  # from now on found without coming here
            return value

    def forget(self, **_signal: object) -> None:
        """Read every entry again when it is next asked for."""
        self.__dict__.clear()


settings = Settings()
setting_changed.connect(settings.forget, dispatch_uid="django_ratelimiter.conf")


def problems() -> list[Problem]:
    """Return everything wrong with `RATELIMITER`: unknown entries, wrong values, or not a dict at all."""
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
    """Return FORCE_SCRIPT_NAME without a slash at its end; empty = it is not set."""
    return (django_setting("FORCE_SCRIPT_NAME") or "").rstrip("/")


def asset_paths() -> tuple[str, ...]:
    """Return STATIC_URL and MEDIA_URL where they are paths of this site, to compare with `request.path_info`.

    The top of the site is left out, because it would stand for the whole site.
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
    """Return a setting as the project wrote it. Django adds, and keeps, the prefix of the first request that asks."""
    django_setting("DEBUG")  # so that the settings are loaded
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
    """Return what is wrong, without the value of a secret."""
    return f"is of type {type(value).__name__}" if name == "HASH_KEY" else f"is {value!r}"
