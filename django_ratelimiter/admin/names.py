"""The callers of digests, as text, for readers with the permission."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.utils.translation import gettext as _

from ..usage.live import names as caller_names
from ..usage.live.names import Name
from .identities import label_of


def revealed_to(reader: Any, digests: Iterable[str]) -> Mapping[str, Name]:
    """Return the callers of these digests, as far as they are known; empty without the permission."""
    digests = set(digests)
    if not digests or not reader.has_perm(caller_names.PERMISSION):
        return {}
    return caller_names.revealed(digests)


def names_in_words(reader: Any, digests: Iterable[str]) -> Mapping[str, str]:
    """Return the callers as text."""
    return in_words(revealed_to(reader, digests))


def in_words(known: Mapping[str, Name]) -> Mapping[str, str]:
    """Return each caller as text: "user: paula (id 42)", "IP address: 192.0.2.7". One query if users are among them."""
    logins = _login_names({name.value for name in known.values() if name.kind == "user"})
    return {digest: _in_words(name, logins) for digest, name in known.items()}


def _in_words(name: Name, logins: Mapping[str, str]) -> str:
    if name.kind == "partition":
        return name.value
    value = name.value
    if name.kind == "user" and logins.get(value, value) != value:
        value = _("%(name)s (id %(pk)s)") % {"name": logins[value], "pk": value}
    return f"{label_of(name.kind)}: {value}"


def _login_names(keys: Iterable[str]) -> Mapping[str, str]:
    """Return the login names of users by primary key, as texts; deleted users are missing."""
    users = get_user_model()
    wanted = []
    for key in keys:
        try:
            users._meta.pk.run_validators(pk := users._meta.pk.to_python(key))
        except ValidationError:  # not a valid primary key
            continue
        wanted.append(pk)
    if not wanted:
        return {}
    found = users._default_manager.filter(pk__in=wanted).values_list("pk", users.USERNAME_FIELD)
    return {str(pk): str(login) for pk, login in found}
