"""Initial values of a new rule, in its form's address: an example, or a copy. Opening the form saves nothing."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from typing import Any, Final, NamedTuple

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, QueryDict
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ...models import Rule, RuleLimit
from ...models.limits import NOT_GIVEN
from ...rules.routes import views
from ...values.bounds import MAX_LIMITS

Row = dict[str, Any]

#: Names of a view for logins; the second is django-allauth's.
_LOGINS: Final = ("login", "account_login", "accounts:login", "users:login", "auth:login")

_ATTEMPTS: Final = (
    "&methods=POST&charge_when=failure&failure_policy=closed"
    "&limits-0-quota=10&limits-0-window_seconds=600&limits-0-algorithm=sliding_window_log"
)


class Preset(NamedTuple):
    """An example. query: of the form of a new rule; "{login}" stands for this project's login view."""

    name: Any
    explanation: Any
    query: str


_PRESETS: Final = (
    Preset(
        gettext_lazy("Login attempts"),
        gettext_lazy("Allows each address 10 failed attempts in 10 minutes; logins that succeed are free."),
        "slug=login&{login}&partition_by=ip" + _ATTEMPTS,
    ),
    Preset(
        gettext_lazy("Login attempts by user name"),
        gettext_lazy(
            "Allows 10 failed attempts in 10 minutes for each user name, from all addresses together; logins that "
            "succeed are free."
        ),
        "slug=login-name&{login}&partition_by=field:username&missing_partition=ip" + _ATTEMPTS,
    ),
    Preset(
        gettext_lazy("Expensive report"),
        gettext_lazy("Lets each user have 2 reports in progress at once, and rejects a third until one has ended."),
        "slug=report&path_kind=prefix&path=/reports/&partition_by=user&missing_partition=ip"
        "&limits-0-quota=2&limits-0-window_seconds=300&limits-0-algorithm=concurrency",
    ),
)

#: Fields that are not copied.
_OWN: Final = ("id", "slug", "name", "mode", "owner")


def presets() -> Iterator[Preset]:
    """Yield the examples, with this project's own names. They begin in shadow, the default."""
    login = next((view.name for view in views() if view.name in _LOGINS), "")
    place = urlencode({"path_kind": "any", "view_name": login}) if login else "path_kind=exact&path=/login/"
    for each in _PRESETS:
        yield each._replace(query=f"{urlencode({'name': each.name})}&{each.query.format(login=place)}")


class Start(NamedTuple):
    """Initial values of a new rule, and of its limits."""

    fields: Mapping[str, Any]
    limits: Sequence[Row]


class PrefilledAdmin(admin.ModelAdmin):
    """An admin whose form for a new rule can have initial values: those in its address, or by `?copy=7`."""

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        return {**super().get_changeform_initial_data(request), **self.start(request).fields}

    def get_formset_kwargs(self, request: HttpRequest, obj: Any, inline: Any, prefix: str) -> dict[str, Any]:
        given = super().get_formset_kwargs(request, obj, inline, prefix)
        is_new = not obj.pk and inline.model is RuleLimit and request.method == "GET"
        return {**given, "initial": self.start(request).limits} if is_new else given

    def start(self, request: HttpRequest) -> Start:
        """Return the initial values of a new rule, read once for each request."""
        if not hasattr(request, "ratelimiter_start"):
            rule = self._copied(request)
            request.ratelimiter_start = _copy_of(rule) if rule else _typed(request.GET)  # type: ignore[attr-defined]
        start: Start = request.ratelimiter_start  # type: ignore[attr-defined]
        return start

    def _copied(self, request: HttpRequest) -> Rule | None:
        pk = request.GET.get("copy", "")
        if not pk:
            return None
        if not self.has_view_permission(request):
            raise PermissionDenied
        rule: Rule | None = self.get_object(request, pk)
        if rule is None:
            raise Http404
        return rule


def _typed(query: QueryDict) -> Start:
    given = query.dict()
    fields = {name: str(given[name]).split(",") for name in ("methods", "partition_by") if given.get(name)}
    rows: defaultdict[int, Row] = defaultdict(dict)
    for name, value in given.items():
        if (found := re.fullmatch(r"limits-([0-9]{1,3})-(\w+)", name, re.ASCII)) and int(found[1]) < MAX_LIMITS:
            rows[int(found[1])][found[2]] = value
    for row in rows.values():
        with suppress(InvalidOperation, KeyError):  # the form shows it as it is
            row["window_seconds"] = Decimal(row["window_seconds"])
    return Start(fields, [rows[place] for place in sorted(rows)])


def _copy_of(rule: Rule) -> Start:
    """Return a copy of this rule in shadow. Its slug is new, and so are its counters: keys are named by the slug."""
    fields = {each.name: getattr(rule, each.name) for each in rule._meta.concrete_fields if each.name not in _OWN}
    name = _("%(name)s (copy)") % {"name": rule.name}
    fields |= {"name": name[:100], "slug": f"{rule.slug[:40]}-copy", "mode": Rule.Mode.SHADOW.value}
    columns = ("algorithm", "unlimited", *NOT_GIVEN)
    limits = [
        {"tier": limit.tier_id, **{column: getattr(limit, column) for column in columns}} for limit in rule.limits.all()
    ]
    return Start(fields, limits)
