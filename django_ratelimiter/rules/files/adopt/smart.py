"""The settings of django-smart-ratelimit, and its rules in the database."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from django.apps import apps
from django.db import DatabaseError
from django.utils.translation import gettext as _

from ....conf import django_setting
from .decorated import counted_by
from .found import Found, limit_of, seconds_of

_ALGORITHMS: Final = {"sliding_window": "sliding_window_log", "leaky_bucket": "gcra"}
#: A regular expression that a prefix does the same as.
_PREFIX: Final = re.compile(r"\^(/[\w/.-]*)(?:\.\*)?")
_APP: Final = "django_smart_ratelimit"


def adopt_smart_settings(found: Found) -> None:
    """Add rules for RATELIMIT_MIDDLEWARE: its rates by path, and the one of all other paths."""
    written = django_setting("RATELIMIT_MIDDLEWARE")
    if not isinstance(written, dict) or not written:
        return
    if written.get("KEY_FUNCTION"):
        found.miss(_("RATELIMIT_MIDDLEWARE: KEY_FUNCTION is code; these rules count by address."))
    for name in ("SKIP_PATHS", "ALLOW_LIST", "DENY_LIST"):
        if written.get(name):
            text = _("RATELIMIT_MIDDLEWARE: %(name)s. See RATELIMITER['EXEMPT_PATHS'] and access entries instead.")
            found.miss(text % {"name": name})
    by_path = {str(path): rate for path, rate in (written.get("RATE_LIMITS") or {}).items()}
    together = _("There, a path has the first rate that it begins with; here every rule that matches applies.")
    for path, rate in by_path.items():
        rule = {"path": path, "path_kind": "prefix"} if path.startswith("/") else None
        _add(found, f"path {path}", rule, rate, [_("From RATE_LIMITS."), together])
    if written.get("DEFAULT_RATE"):
        rest = [together] if by_path else []
        _add(found, "all paths", {"path_kind": "any"}, written["DEFAULT_RATE"], [_("From DEFAULT_RATE."), *rest])


def adopt_smart_rules(found: Found) -> None:
    """Add rules for the active ones in its table, if the app is installed and the database can be asked."""
    if not apps.is_installed(_APP):
        return
    try:
        rows: Iterable[Any] = list(apps.get_model(_APP, "RateLimitRule")._default_manager.filter(is_active=True))
    except (LookupError, DatabaseError):
        found.miss(_("Rules of django-smart-ratelimit: its table cannot be read."))
        return
    for row in rows:
        match = _PREFIX.fullmatch(row.path_pattern)
        place = {"path": match[1], "path_kind": "prefix"} if match else None
        counted = counted_by(row.key)
        methods = [] if row.method.upper() == "ALL" else [each.strip().upper() for each in row.method.split(",")]
        rule = None if place is None or counted is None else {**place, **counted, "methods": methods}
        algorithm = _ALGORITHMS.get(row.algorithm, row.algorithm)
        _add(found, row.name, rule, row.rate, [_("From its rule in the database.")], algorithm)


def _add(
    found: Found, name: str, rule: dict[str, Any] | None, rate: Any, notes: list[str], algorithm: str = "fixed_window"
) -> None:
    parsed = seconds_of(rate)
    if rule is None or parsed is None or not parsed[0]:
        text = _("django-smart-ratelimit, %(name)s, %(rate)s: no rule does the same.")
        found.miss(text % {"name": name, "rate": rate})
        return
    limit, more = limit_of(*parsed, algorithm)
    found.add(name, {"mode": "shadow", "partition_by": ["ip"], **rule, "limits": [limit]}, [*notes, *more])
