"""The initial values in the form of a new rule: a preset, or a copy of another rule. Opening it saves nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final, NamedTuple

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.forms import CharField, PasswordInput
from django.http import Http404, HttpRequest
from django.urls import NoReverseMatch, Resolver404, resolve, reverse
from django.utils.text import slugify
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ...models import Rule, RuleLimit, Tier
from ...models.options import NOT_GIVEN
from ...rules.routes import views

Row = dict[str, Any]

#: The hourly quota of a public API for the tier of lowest rank; each higher tier has ten times as much.
_FIRST_TIER: Final = 100
_MOST_TIERS: Final = 5


class Preset(NamedTuple):
    """Initial values of a new rule. name: also its own. fields: of the rule. limits: makes its rows when asked."""

    name: Any
    explanation: Any
    fields: Mapping[str, Any]
    limits: Callable[[], Sequence[Row]]


def _per_tier() -> list[Row]:
    """Return a row for each tier, from the lowest rank up, and one for all other callers."""
    tiers = Tier.objects.order_by("rank", "pk")[:_MOST_TIERS]
    rows: list[Row] = [
        {"tier": tier.pk, "quota": _FIRST_TIER * 10**place, "window_seconds": Decimal(3_600)}
        for place, tier in enumerate(tiers)
    ]
    return [*rows, {"quota": 20, "window_seconds": Decimal(60)}]


def _of(**row: Any) -> Callable[[], list[Row]]:
    return lambda: [{**row, "window_seconds": Decimal(row["window_seconds"])}]


#: What both presets for logins have in common.
_LOGIN: Final[Mapping[str, Any]] = {
    "path_kind": "exact",
    "path": "/login/",
    "methods": ["POST"],
    "charge_when": "failure",
    "failure_policy": "closed",
}
_ATTEMPTS: Final = _of(quota=10, window_seconds=600, algorithm="sliding_window_log")

PRESETS: Final[Mapping[str, Preset]] = {
    "login": Preset(
        gettext_lazy("Login attempts"),
        gettext_lazy("Allows each address 10 failed attempts in 10 minutes; logins that succeed are free."),
        {**_LOGIN, "partition_by": ["ip"]},
        _ATTEMPTS,
    ),
    "login-name": Preset(
        gettext_lazy("Login attempts by user name"),
        gettext_lazy(
            "Allows 10 failed attempts in 10 minutes for each user name, from all addresses together; logins that "
            "succeed are free."
        ),
        {**_LOGIN, "partition_by": ["field:username"], "missing_partition": "ip"},
        _ATTEMPTS,
    ),
    "api": Preset(
        gettext_lazy("Public API by tier"),
        gettext_lazy("Gives each user an hourly quota by tier, and callers without a tier 20 requests per minute."),
        {"path_kind": "prefix", "path": "/api/", "partition_by": ["user"], "missing_partition": "ip"},
        _per_tier,
    ),
    "report": Preset(
        gettext_lazy("Expensive report"),
        gettext_lazy("Lets each user have 2 reports in progress at once, and rejects a third until one has ended."),
        {"path_kind": "prefix", "path": "/reports/", "partition_by": ["user"], "missing_partition": "ip"},
        _of(quota=2, window_seconds=300, algorithm="concurrency"),
    ),
    "webhooks": Preset(
        gettext_lazy("Webhook inbox"),
        gettext_lazy(
            "Allows 10 deliveries per second from each address, with bursts of 50. Allows all of them if Redis fails."
        ),
        {
            "path_kind": "prefix",
            "path": "/webhooks/",
            "methods": ["POST"],
            "partition_by": ["ip"],
            "failure_policy": "open",
        },
        _of(quota=10, window_seconds=1, algorithm="token_bucket", burst=50),
    ),
    "outgoing": Preset(
        gettext_lazy("Outgoing calls"),
        gettext_lazy("Spaces out your own calls to another service: 5 per second from all processes together."),
        {"scope": "other-service"},
        _of(quota=5, window_seconds=1, algorithm="leaky_bucket", burst=50),
    ),
}

#: Names of a view for logins, for the presets, if the project has one of them; django-allauth's is the second.
_LOGINS: Final = ("login", "account_login", "accounts:login", "users:login", "auth:login")

#: Fields that are not copied.
_OWN: Final = ("id", "slug", "name", "mode", "owner")


class Start(NamedTuple):
    """The initial values in the form of a new rule. source: a sentence about their origin."""

    fields: Mapping[str, Any]
    limits: Sequence[Row]
    source: str


class PrefilledAdmin(admin.ModelAdmin):
    """An admin whose form for a new rule can have initial values: by `?preset=login`, or by `?copy=7`."""

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        start = self._start(request)
        return {**super().get_changeform_initial_data(request), **(start.fields if start else {})}

    def get_formset_kwargs(self, request: HttpRequest, obj: Any, inline: Any, prefix: str) -> dict[str, Any]:
        start = None if obj.pk or inline.model is not RuleLimit else self._start(request)
        given = super().get_formset_kwargs(request, obj, inline, prefix)
        return {**given, "initial": list(start.limits)} if start else given

    def render_change_form(self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("add") and request.method == "GET":
            start = self._start(request)
            context |= {"source": start.source} if start else {"presets": PRESETS}
        context["may_copy"] = self.has_add_permission(request)
        return super().render_change_form(request, context, *args, **kwargs)

    def _start(self, request: HttpRequest) -> Start | None:
        """Return the initial values of a new rule; `None` = none. Read once for each request."""
        if request.method != "GET":
            return None
        if not hasattr(request, "ratelimiter_start"):
            request.ratelimiter_start = self._read_start(request)  # type: ignore[attr-defined]
        start: Start | None = request.ratelimiter_start  # type: ignore[attr-defined]
        return start

    def _read_start(self, request: HttpRequest) -> Start | None:
        pk = request.GET.get("copy", "")
        if not pk:
            return from_preset(request.GET.get("preset", ""))
        if not self.has_view_permission(request):
            raise PermissionDenied
        rule = self.get_object(request, pk)
        if rule is None:
            raise Http404
        names = ("view_rulelimit", "add_rulelimit")
        may_copy = all(request.user.has_perm(f"django_ratelimiter.{name}") for name in names)
        return from_rule(rule, with_limits=may_copy)


def from_preset(key: str) -> Start | None:
    """Return the initial values of a preset; `None` = there is no such preset."""
    preset = PRESETS.get(key)
    if preset is None:
        return None
    fields = {"name": str(preset.name), "slug": _free_slug(key), "mode": Rule.Mode.SHADOW.value, **preset.fields}
    if key.startswith("login") and (login := next((view.name for view in views() if view.name in _LOGINS), "")):
        fields |= {"path_kind": "any", "path": "", "view_name": login}
        fields["partition_by"] = [each.replace("username", _name_field(login)) for each in fields["partition_by"]]
    source = _("Filled in from “%(preset)s”. Nothing is saved yet: check each section, then save.")
    return Start(fields, preset.limits(), source % {"preset": preset.name})


def _name_field(login: str) -> str:
    """Return the field with the user name that the form of this view posts."""
    try:
        found: Any = resolve(reverse(login)).func
    except (NoReverseMatch, Resolver404):  # its path has parameters
        found = None
    view = found.view_class(**found.view_initkwargs) if hasattr(found, "view_class") else None
    form = getattr(view, "authentication_form", None) or getattr(view, "form_class", None)
    names = [
        name
        for name, field in getattr(form, "base_fields", {}).items()
        if isinstance(field, CharField) and not isinstance(field.widget, PasswordInput)
    ]
    usual = "login" if login == "account_login" else "username"  # django-allauth adds its field to each form
    return usual if usual in names or not names else str(names[0])


def from_rule(rule: Rule, *, with_limits: bool) -> Start:
    """Return a copy of this rule in shadow. Its slug is new, and so are its counters: keys are named by the slug."""
    fields = {each.name: getattr(rule, each.name) for each in rule._meta.concrete_fields if each.name not in _OWN}
    name = _("%(name)s (copy)") % {"name": rule.name}
    fields |= {"name": name[:100], "slug": _free_slug(f"{rule.slug[:40]}-copy"), "mode": Rule.Mode.SHADOW.value}
    limits = [_row(limit) for limit in rule.limits.all()] if with_limits else []
    source = _("A copy of “%(rule)s” in shadow, with its own counters. Nothing is saved yet.") % {"rule": rule.name}
    if not with_limits:
        source += " " + _("Its limits are not copied: you need the permissions to view and to add limits.")
    return Start(fields, limits, source)


def _row(limit: RuleLimit) -> Row:
    columns = ("algorithm", "unlimited", *NOT_GIVEN)
    return {"tier": limit.tier_id, **{column: getattr(limit, column) for column in columns}}


def _free_slug(wanted: str) -> str:
    """Return this slug, or the same with a number, that no rule has."""
    stem = slugify(wanted, allow_unicode=False)
    used = set(Rule.objects.filter(slug__startswith=stem).values_list("slug", flat=True))
    return next(slug for slug in (stem, *(f"{stem}-{count}" for count in range(2, len(used) + 3))) if slug not in used)
