"""Validation of the fields of rules, beyond their types."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_interface
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import unquote_to_bytes

from django.contrib.auth import get_user_model
from django.core.exceptions import ImproperlyConfigured, ValidationError
from django.core.validators import RegexValidator
from django.db.models import Model
from django.urls import get_resolver
from django.urls.resolvers import RoutePattern
from django.utils.encoding import repercent_broken_unicode
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from .. import tenants
from ..conf import is_secret, settings
from ..customers import customer_model
from ..databases import spelled
from ..values.access import DIGEST_MARK, network_of, parse_digest
from ..values.partitions import IDENTITIES, NAMED, is_identity, partition_names
from ..values.terminal import CONTROLS

if TYPE_CHECKING:
    from django.utils.functional import _StrPromise

#: A text that is translated when it is shown.
LazyText: TypeAlias = "_StrPromise"

#: The stored form of an API key.
validate_hash: Final = RegexValidator(
    r"\A[0-9a-f]{64}\Z", gettext_lazy("This is not a SHA-256 digest in lower-case hex.")
)

_CONTROL: Final = re.compile(f"[{CONTROLS}]")

#: The methods that a rule can name, from RFC 9110 and RFC 5789.
METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT")


def validate_line(text: str) -> None:
    """Reject line breaks, and other characters that control a terminal."""
    if _CONTROL.search(text):
        raise ValidationError(_("Must be one line, without control characters."), code="controls")


def validate_caller_digest(value: str) -> None:
    """Reject a text that is not what rules count a caller by and its digest."""
    try:
        parse_digest(value)
    except ValueError:
        text = _(
            "Enter what rules count the caller by, and its digest of 22 characters: “ip:DIGEST”, “user or ip:DIGEST”."
        )
        raise ValidationError(text, code="digest") from None


def validate_identities(value: Any) -> None:
    """Reject anything but a list of distinct identities that a rule can be split by."""
    _validate_words(value, (*IDENTITIES, *NAMED), is_identity)


def validate_methods(value: Any) -> None:
    """Reject anything but a list of distinct methods."""
    _validate_words(value, METHODS)


def _validate_words(value: Any, known: Sequence[str], is_known: Callable[[Any], bool] | None = None) -> None:
    """Reject anything but a list of distinct words in `known`, or for which `is_known` is true."""
    if not isinstance(value, list):
        raise ValidationError(_("Must be a list of texts."), code="not_a_list")
    for word in value:
        if not (is_known or known.__contains__)(word):
            raise ValidationError(
                _("%(word)r is unknown; choose from %(known)s."),
                code="unknown",
                params={"word": word, "known": ", ".join(known)},
            )
    if len(set(value)) != len(value):
        raise ValidationError(_("Name each only once."), code="duplicate")


def validate_path(path: str, kind: str) -> None:
    """Reject a path that can never match with this kind. An unknown kind is the field's own error."""
    if kind == "any" and path:
        text = _("Choose how the path is matched, or leave it empty.")
        raise ValidationError(f"{text} path_kind: exact, prefix, route.", code="unused")
    if kind in ("exact", "prefix", "route") and not path:
        raise ValidationError(_("Give the path that is to be matched."), code="required")
    elif kind in ("exact", "prefix"):
        plain = re.sub(r"[?#].*", "", re.sub(r"^[a-z]+://[^/?#]*", "", path))
        right = repercent_broken_unicode(unquote_to_bytes(plain)).decode()  # as Django reads the path of a request
        if not right.startswith("/"):
            raise ValidationError(_("Must start with “/”."), code="relative")
        if right != path:
            text = _("A path has no host, query, fragment or escapes such as %%20. Write %(path)s.")
            raise ValidationError(text, code="never", params={"path": right})
        if "*" in path:
            text = _("“*” has no meaning here. For all paths below it, choose “paths that start with it” and %(path)s.")
            raise ValidationError(text, code="wildcard", params={"path": path.partition("*")[0]})
    elif kind == "route":
        validate_route(path)


def validate_route(route: str) -> None:
    """Reject a text that cannot be the `route` of a resolver match: the argument of `path()` or `re_path()`."""
    try:
        if _is_regex(route):
            re.compile(route)
        else:
            _parse(route)
    except re.error as error:
        raise ValidationError(
            _("Not a regular expression: %(error)s."), code="broken", params={"error": error}
        ) from error
    except ImproperlyConfigured as error:
        raise ValidationError(
            _("Not a route as in urls.py: %(error)s"), code="broken", params={"error": error}
        ) from error
    if not _is_regex(route) and re.search(r"[<>]", re.sub(r"<[^<>]+>", "", route)):
        raise ValidationError(_("A “<” or “>” has no matching bracket."), code="broken")


def _is_regex(route: str) -> bool:
    return "(?" in route or route.startswith("^") or route.endswith(("$", r"\Z", r"\z"))


def _parse(route: str) -> None:
    try:
        RoutePattern(route).regex  # noqa: B018  compiled here, which raises if a name is used twice
    except ImproperlyConfigured:
        if not _load_urlconf():
            raise
        RoutePattern(route)


def _load_urlconf() -> bool:
    """Import the URLconf, because it registers the project's own converters. False if the import fails."""
    try:
        get_resolver().url_patterns  # noqa: B018
    except Exception:  # errors in the project's URLconf are not errors of the rule
        return False
    return True


def normal_partition(text: str) -> str:
    """Return a normalized partition such as "tenant:acme" or "user:7|ip:192.0.2.7"; an address gets its usual form."""
    if text.startswith(DIGEST_MARK):
        validate_caller_digest(text.removeprefix(DIGEST_MARK))
        return text
    names = partition_names(text)
    if not all(names):
        raise ValidationError(_("Enter a kind of value and the value, such as “ip:192.0.2.7”."), code="no_value")
    for name in names:
        if not is_identity(name):
            raise ValidationError(
                _("Unknown kind of value: %(name)r. Begin with %(known)s."),
                code="unknown",
                params={"name": name, "known": ", ".join(f"“{known}:”" for known in IDENTITIES)},
            )
        if is_secret(name):
            raise ValidationError(
                _(
                    "“%(name)s” is a secret, and a partition is stored as text. Assign the tier to the user or the API "
                    "key."
                ),
                code="secret",
                params={"name": name},
            )
    if names == ("ip",):
        network = _network(text.removeprefix("ip:"))
        _reject_narrow(network)
        return f"ip:{_network_text(network)}"
    values = [part.removeprefix(f"{name}:") for name, part in zip(names, text.split("|"), strict=True)]
    return "|".join(
        f"{name}:{value if '%' in value else spelled(name, value)}" for name, value in zip(names, values, strict=True)
    )


def normal_caller(kind: str, value: str) -> str:
    """Return the normalized value of an access entry. An unknown kind is the field's own error."""
    if kind == "ip":
        return normal_network(value)
    if kind == "user":
        return normal_user(value)
    if kind == "customer":
        return normal_row(customer_model(), value)
    if kind == "api_key":
        validate_hash(value)
    if kind == "digest":
        validate_caller_digest(value)
    return value


def normal_user(text: str) -> str:
    """Return what rules count a user by, from a primary key: with the current schema if tenants have their own users.

    A key with a schema or with another model, such as "shop.Device:7", does not change.
    """
    return text if "." in text.rpartition(":")[0] else normal_row(get_user_model(), text)


def normal_row(model: type[Model] | None, text: str) -> str:
    """Return what rules count a row of this model by, from its primary key; the same text if no model is known."""
    if model is None or (":" in text and tenants.have_own(model._meta.app_label)):
        return text
    return tenants.key_of(model, model._meta.pk.to_python(text))


def normal_network(text: str) -> str:
    """Return a normalized address or network, such as "192.0.2.0/24", without bits after its prefix."""
    return _network_text(_network(text))


def _network(text: str) -> IPv4Network | IPv6Network:
    try:
        return network_of(str(ip_interface(text.strip()).network))
    except ValueError as error:
        raise ValidationError(_("Not an address or network: %(error)s."), params={"error": error}) from error


def _network_text(network: IPv4Network | IPv6Network) -> str:
    return str(network.network_address) if network.prefixlen == network.max_prefixlen else str(network)


def _reject_narrow(network: IPv4Network | IPv6Network) -> None:
    """Reject a network that is narrower than the prefix of callers: no request could match it."""
    prefix = settings.IPV4_PREFIX if network.version == 4 else settings.IPV6_PREFIX
    if network.prefixlen > prefix:
        raise ValidationError(
            _("Callers are distinguished by the first %(bits)s bits of their address. Enter %(network)s."),
            code="narrow",
            params={"bits": prefix, "network": network.supernet(new_prefix=prefix)},
        )
