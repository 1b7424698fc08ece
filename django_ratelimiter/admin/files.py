"""Rules files in the admin: the rules of a file are read-only, and all rules can be downloaded as a new file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from ..models import Rule
from ..rules.files.writing import text_of_database
from ..rules.formatting import listed


def download_view(_page_of: Any, request: HttpRequest) -> HttpResponse:
    """Send the rules as a file. Access entries are not in it."""
    response = HttpResponse(text_of_database("yaml"), content_type="application/yaml; charset=utf-8")
    response["Content-Disposition"] = 'attachment; filename="ratelimits.yaml"'
    return response


def owner_note(rule: Rule) -> SafeString:
    """Return the owner of a rule for the list; empty for the admin, the usual owner."""
    if rule.owner == Rule.Owner.ADMIN:
        return SafeString("")
    return format_html('<br><span class="ratelimiter-owner">{}</span>', rule.get_owner_display())


def locked_among(rules: Any) -> list[str]:
    """Return the slugs of those rules that belong to a file."""
    return [rule.slug for rule in rules if is_locked(rule)]


def name_locked(request: HttpRequest, slugs: Sequence[str]) -> None:
    """Show a message with the rules that an action does not change, because they belong to a file."""
    if slugs:
        text = _("Rules of a file stay as they are: %(names)s. Change them there.")
        messages.warning(request, text % {"names": listed(slugs)})


def is_locked(rule: Any) -> bool:
    """Return whether this is a rule of a file, which cannot be changed or deleted here."""
    return rule is not None and rule.owner == Rule.Owner.FILE
