"""The callers of digests, as text, for readers with the permission."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.utils.translation import gettext as _

from ..inspection.caller_report import key_labels, labelled
from ..inspection.references import Name, revealed_to
from ..values.terminal import without_controls
from .identities import label_of


def names_in_words(reader: Any, aliases: Iterable[str]) -> Mapping[str, str]:
    """Return the callers as text, by alias; those that the reader may see."""
    return in_words(reader, revealed_to(reader, aliases))


def in_words(reader: Any, known: Mapping[str, Name]) -> Mapping[str, str]:
    """Return each caller as text: "user: paula (id 42)", "IP address: 192.0.2.7", "API key: shop (1a2b3c4d…)".

    One query if users are among them, and one if API keys are.
    """
    logins = _login_names({name.value for name in known.values() if name.kind == "user"})
    labels = key_labels(reader, {name.value for name in known.values() if name.kind == "api_key"})
    return {digest: without_controls(_in_words(name, logins, labels)) for digest, name in known.items()}


def _in_words(name: Name, logins: Mapping[str, str], labels: Mapping[str, str]) -> str:
    if name.kind == "partition":
        return name.value
    value, text = name.value, name.shown
    if name.kind == "user" and logins.get(value, value) != value:
        text = _("%(name)s (id %(pk)s)") % {"name": logins[value], "pk": value}
    if name.kind == "api_key":
        text = labelled(name, labels)
    return f"{label_of(name.kind)}: {text}"


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
