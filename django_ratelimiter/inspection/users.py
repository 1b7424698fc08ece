"""Finding the user that a text names: by primary key, by login name, or with a prefix that says which."""

from __future__ import annotations

from typing import Any

from django.contrib.auth import get_user_model
from django.core.exceptions import ObjectDoesNotExist, ValidationError
from django.utils.translation import gettext as _

from ..tenants import own_pk


class TwoUsers(ValueError):
    """The text is the login name of one user and the primary key of another; the message says what to enter."""


def find_user(text: str) -> Any:
    """Return the user with this primary key or login name; `None` if there is none. Raises TwoUsers.

    "id:42" and "pk:42" are only primary keys, and "name:42" is only a login name.
    """
    if "\0" in text:
        return None
    prefix, colon, rest = text.partition(":")
    if colon and prefix in ("id", "pk"):
        return _of_key(rest)
    if colon and prefix == "name":
        return _of_name(rest)
    named, keyed = _of_name(text), _of_key(text)
    if named is not None and keyed is not None and named.pk != keyed.pk:
        words = _(
            "Two users match: login name %(text)s (id %(pk)s) and id %(text)s. Enter name:%(text)s or id:%(text)s."
        )
        raise TwoUsers(words % {"text": text, "pk": named.pk})
    return keyed if named is None else named


def by_key(pk: Any) -> str:
    """Return a text that names only the user with this primary key."""
    return f"id:{pk}"


def _of_key(text: str) -> Any:
    try:
        return get_user_model()._default_manager.filter(pk=own_pk(text)).first()
    except (ValueError, ValidationError, OverflowError):  # not a valid primary key
        return None


def _of_name(text: str) -> Any:
    users = get_user_model()
    try:
        return users._default_manager.get_by_natural_key(text)
    except (ObjectDoesNotExist, AttributeError):  # a project's own manager may lack it
        return None
