"""The text of a rules file with everything that was found."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.urls import get_resolver
from django.utils.translation import gettext as _

from ....conf import django_setting
from ...routes import all_views
from ..schema import VERSION
from ..writing import json_of, yaml_of
from .decorated import adopt_decorators
from .found import Found
from .framework import adopt_throttles
from .smart import adopt_smart_rules, adopt_smart_settings


def adopt() -> Found:
    """Return rules that replace the project's other limiters. Queries only the tables of another limiter."""
    found = Found()
    matches = list(all_views(get_resolver())) if django_setting("ROOT_URLCONF") else []
    adopt_throttles(matches, dict(django_setting("REST_FRAMEWORK") or {}), found)
    adopt_decorators(matches, found)
    adopt_smart_settings(found)
    adopt_smart_rules(found)
    return found


def text_of(found: Found, style: str) -> str:
    """Return a rules file. style: "yaml", or "json", which has no comments."""
    document: dict[str, Any] = {"version": VERSION}
    document |= {"tiers": found.tiers} if found.tiers else {}
    document["rules"] = found.rules
    if style == "json":
        return json_of(document)
    return yaml_of(document, list(comments_of(found)), found.notes)


def comments_of(found: Found) -> Iterator[str]:
    """Yield the lines at the top of the file."""
    yield _("Made by `manage.py ratelimit adopt` of what limits this project now.")
    yield _("All rules are in shadow: they count, and reject nothing. Compare, then set them to “enforce”.")
    for heading, texts in ((_("Different:"), found.differences), (_("Not translated:"), found.missed)):
        if texts:
            yield ""
            yield heading
            yield from (f"- {text}" for text in texts)
