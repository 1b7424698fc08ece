"""The settings of django-smart-ratelimit, and its rules in the database."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from django.apps import apps
from django.db import DatabaseError
from django.utils.translation import gettext as _

from ....conf import django_setting
from .decorated import counted_by, smart_algorithm
from .found import Found, limit_of, seconds_of

#: Regular expressions that are equivalent to a prefix or a whole path.
_PREFIX: Final = re.compile(r"\^(/[\w/-]*)(?:\.\*)?")
_WHOLE: Final = re.compile(r"\^(/[\w/-]*)\$")
_APP: Final = "django_smart_ratelimit"
_MIDDLEWARE: Final = "django_smart_ratelimit.middleware.RateLimitMiddleware"


def adopt_smart_settings(found: Found) -> None:
    """Add rules for RATELIMIT_MIDDLEWARE: its rates by path, and its default rate."""
    written = django_setting("RATELIMIT_MIDDLEWARE") or {}
    is_installed = _MIDDLEWARE in (django_setting("MIDDLEWARE") or ())
    if not isinstance(written, dict) or not (written or is_installed):
        return
    if written.get("KEY_FUNCTION"):
        found.miss(_("RATELIMIT_MIDDLEWARE: KEY_FUNCTION is code; these rules count by address."))
    for name in ("SKIP_PATHS", "ALLOW_LIST", "DENY_LIST"):
        if written.get(name):
            text = _("RATELIMIT_MIDDLEWARE: %(name)s. See RATELIMITER['EXEMPT_PATHS'] and access entries instead.")
            found.miss(text % {"name": name})
    by_path = {str(path): rate for path, rate in (written.get("RATE_LIMITS") or {}).items()}
    lenient = [_rejects_nothing()] if not written.get("BLOCK", True) or written.get("SHADOW") else []
    together = [
        _("There, a path has the rate of the first prefix that it begins with; here every rule that matches applies.")
    ]
    apart = [_("There, each path has its own counter; here all paths of the rule share one.")]
    for path, rate in by_path.items():
        rule = {"path": path, "path_kind": "prefix"} if path.startswith("/") else None
        _add(found, f"path {path}", rule, rate, [_("From RATE_LIMITS."), *together, *apart, *lenient])
    rest = written.get("DEFAULT_RATE", "100/m" if is_installed else None)
    if rest:
        notes = [_("From DEFAULT_RATE."), *(together if by_path else ()), *lenient]
        _add(found, "all paths", {"path_kind": "any"}, rest, notes)


def adopt_smart_rules(found: Found) -> None:
    """Add rules for the active rows of its table, if the app is installed and the database can be read."""
    if not apps.is_installed(_APP):
        return
    try:
        rows: list[Any] = list(apps.get_model(_APP, "RateLimitRule")._default_manager.filter(is_active=True))
    except (LookupError, DatabaseError):
        found.miss(_("Rules of django-smart-ratelimit: its table cannot be read."))
        return
    if rows and not django_setting("RATELIMIT_USE_DYNAMIC_RULES", False):
        text = _(
            "Rules of django-smart-ratelimit: they are not in force, because RATELIMIT_USE_DYNAMIC_RULES is not set."
        )
        found.miss(text)
        return
    adopt_rows(rows, found)


def adopt_rows(rows: Sequence[Any], found: Found) -> None:
    """Add a rule for each of these rows of its table."""
    first = _("There, only the first rule that matches applies; here every rule that matches applies.")
    for row in rows:
        place, counted, parsed = _place_of(row.path_pattern), counted_by(row.key), seconds_of(row.rate)
        wrong = (("path_pattern", place), ("key", counted), ("rate", parsed and parsed[0]))
        if column := next((column for column, value in wrong if not value), ""):
            text = _(
                "Rule “%(name)s” of django-smart-ratelimit: its %(what)s, %(value)s, has no rule that does the same."
            )
            found.miss(text % {"name": row.name, "what": column, "value": repr(getattr(row, column))})
            continue
        rule = {**(place or {}), **(counted or {})}
        methods = [each.strip().upper() for each in row.method.split(",") if each.strip()]
        if methods != ["ALL"]:
            rule["methods"] = methods
        notes = [_("From its rule in the database."), *([first] if len(rows) > 1 else ())]
        if not row.block:
            notes.append(_rejects_nothing())
        _add(found, row.name, rule, row.rate, notes)


def _place_of(pattern: str) -> dict[str, str] | None:
    if match := _WHOLE.fullmatch(pattern):
        return {"path": match[1], "path_kind": "exact"}
    match = _PREFIX.fullmatch(pattern)
    return {"path": match[1], "path_kind": "prefix"} if match else None


def _rejects_nothing() -> str:
    return _("It rejects nothing there; a rule in shadow does the same.")


def _add(found: Found, name: str, rule: dict[str, Any] | None, rate: Any, notes: list[str]) -> None:
    """Add a rule that counts like its middleware: with the algorithm in its settings, which ignores that of the row."""
    parsed = seconds_of(rate)
    if rule is None or parsed is None or not parsed[0]:
        text = _("django-smart-ratelimit, %(name)s, %(rate)s: no rule does the same.")
        found.miss(text % {"name": name, "rate": rate})
        return
    algorithm = smart_algorithm()
    limit, more = limit_of(*parsed, algorithm)
    counts = {"count_refusals": True} if algorithm == "sliding_window_log" else {}
    found.add(name, {"mode": "shadow", "partition_by": ["ip"], **rule, **counts, "limits": [limit]}, [*notes, *more])
