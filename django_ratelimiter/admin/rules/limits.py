"""The limits of a rule on its page: their fields, and what they do, in sentences, before they are saved."""

from __future__ import annotations

import json
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from typing import Any, Final
from zoneinfo import available_timezones

from django import forms
from django.contrib import admin
from django.forms.models import BaseInlineFormSet
from django.http import HttpRequest, QueryDict
from django.utils.formats import number_format
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from ...engine.algorithms import STEPS, Microseconds, Units
from ...engine.calendars import CALENDARS
from ...engine.limits import LOCAL_MS, MAX_SYNC_MS, Limit
from ...engine.registry import Algorithm
from ...models import Rule, RuleLimit, Tier
from ...models.limits import NOT_GIVEN, columns_used
from ...rules.formatting import duration, per, rate_in_words, units
from ...values.bounds import MAX_LIMITS
from ..formatting import label_of
from .forms import IdentitiesField, RuleLimitForm, RuleLimitFormSet, SingleLimitForm


def sentences(row: RuleLimit) -> str:
    """Return the effect of this limit, for whom, and when rejected callers may retry; "" if it cannot be enforced."""
    try:
        limit = row.to_limit()
    except (ValueError, TypeError):
        return ""
    rule = row.rule if hasattr(row, "rule") else Rule()
    if limit is None:
        return _unlimited(row)
    parts = [*_of_algorithm(limit, rule, row)]
    if limit.soft_quota is not None:
        text = _("Usage beyond %(soft)s is still allowed, but marked and counted as beyond the soft quota.")
        parts.append(text % {"soft": units(limit.soft_quota)})
    if isinstance(rule.cost, int) and rule.cost > 1:
        parts.append(_("One request uses %(cost)s.") % {"cost": units(rule.cost)})
    if rule.charge_when == Rule.ChargeWhen.SUCCESS:
        parts.append(_("The charge is refunded if the response is a failure."))
    if rule.charge_when == Rule.ChargeWhen.FAILURE:
        parts.append(_("The charge is refunded unless the response is a failure."))
    if rule.count_refusals is True:
        parts.append(_("Rejected requests count too, so callers who keep trying may wait longer."))
    parts += _counted_apart(rule)
    return " ".join(parts)


def _counted_apart(rule: Rule) -> list[str]:
    """Return the effect of counting in each process."""
    interval = rule.sync_interval_ms
    if not isinstance(interval, int) or not interval:
        return []
    if interval < 0:
        return [_("Each process counts separately: with four processes, four times as much can pass.")]
    text = _(
        "Each process fetches units in advance and keeps them for %(interval)s; meanwhile another process may reject."
    )
    return [text % {"interval": duration(interval * 1_000)}]


def _unlimited(row: RuleLimit) -> str:
    if row.tier:
        return _("Callers of the tier “%(tier)s” are neither limited by this rule nor counted.") % {"tier": row.tier}
    return _("Callers of every other tier are neither limited by this rule nor counted.")


def _who(rule: Rule, row: RuleLimit) -> str:
    """Return who has a counter: "Each user", or "Each user, in the tier “Free”,"."""
    parts = rule.partition_by if isinstance(rule.partition_by, list) else []
    named = _(" and ").join(label_of(str(part)) for part in parts)
    if len(parts) > 1:
        who = _("Each combination of %(parts)s") % {"parts": named}
    else:
        who = _("Each %(part)s") % {"part": named} if parts else _("All callers together")
    return _("%(who)s, in the tier “%(tier)s”,") % {"who": who, "tier": row.tier} if row.tier else who


def _of_algorithm(limit: Limit, rule: Rule, row: RuleLimit) -> Iterator[str]:
    """Return the sentences of the algorithm itself. For leases also the maximum for a caller."""
    who, cost = _who(rule, row), rule.cost if isinstance(rule.cost, int) else 1
    quota = ngettext("%(quota)s unit", "%(quota)s units", limit.quota) % {"quota": units(limit.quota)}
    if not limit.holds_leases:
        yield _("%(who)s can use %(rate)s.") % {"who": who, "rate": rate_in_words(limit, quota)}
    common = {
        "who": who,
        "quota": quota,
        "size": units(limit.capacity),
        "window": duration(limit.window_us),
        "pace": _pace(limit),
    }
    for text, values in STEPS[limit.algorithm].describe(limit, cost):
        yield _(text) % (common | {name: _shown(value) for name, value in values.items()})
    if limit.holds and limit.capacity > cost:
        yield _delay(row.max_delay_ms)


def _shown(value: object) -> object:
    if isinstance(value, Units):
        return units(value)
    return duration(value) if isinstance(value, Microseconds) else value


def _delay(max_delay_ms: object) -> str:
    if not isinstance(max_delay_ms, int) or not max_delay_ms:  # SQLite may contain a text
        return _("Synchronous workers delay no requests: they reject those that would have to wait.")
    text = _(
        "Synchronous workers sleep during the delay, and reject requests that would have to wait longer than %(delay)s."
    )
    return text % {"delay": duration(max_delay_ms * 1_000)}


def _pace(limit: Limit) -> str:
    """Return how fast units come back: "one per 6 seconds"."""
    time = Fraction(limit.window_us, limit.quota)
    if time.denominator == 1:
        return per(_("one"), int(time))
    return _("about one per %(seconds)s seconds") % {"seconds": number_format(f"{float(time) / 1e6:.4g}")}


#: The fields of a limit that come first; the others follow in the order of the model.
_FIRST: Final = ("tier", "unlimited", "quota", "window_seconds", "soft_quota", "algorithm")
_OPTIONS: Final = [each.name for each in RuleLimit._meta.concrete_fields if each.name in NOT_GIVEN]


class RuleLimitInline(admin.StackedInline):
    """The limits of a rule, on its own page."""

    model = RuleLimit
    form = RuleLimitForm
    formset = RuleLimitFormSet
    verbose_name_plural = gettext_lazy("How much: limits per tier")
    fields = (*dict.fromkeys((*_FIRST, *_OPTIONS)), "in_words")
    readonly_fields = ("in_words",)
    max_num = MAX_LIMITS

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return True: whoever sees a rule sees its limits, as in the list of rules."""
        return True

    def get_formset(self, request: HttpRequest, obj: Any = None, **kwargs: Any) -> Any:
        return super().get_formset(request, obj, absolute_max=MAX_LIMITS, **kwargs)

    def get_queryset(self, request: HttpRequest) -> Any:
        return super().get_queryset(request).select_related("rule", "tier")

    def get_extra(self, request: HttpRequest, obj: Any = None, **kwargs: Any) -> int:
        start = getattr(request, "ratelimiter_start", None)  # the initial values of a new rule
        return 0 if obj else max(len(start.limits), 1) if start else 1

    def formfield_for_dbfield(self, db_field: Any, request: Any, **kwargs: Any) -> Any:
        if db_field.name == "tier":
            kwargs["empty_label"] = _("every other tier")
        field = super().formfield_for_dbfield(db_field, request, **kwargs)
        if db_field.name == "tier":  # tiers are edited on their own pages
            field.widget.can_add_related = field.widget.can_change_related = False  # type: ignore[union-attr]
            field.widget.can_delete_related = field.widget.can_view_related = False  # type: ignore[union-attr]
        return field

    @admin.display(description=gettext_lazy("In words"))
    def in_words(self, row: RuleLimit) -> str:
        """Return the effect of the limit. The page's script updates it while the limit is edited."""
        return format_html('<span class="ratelimiter-sentences" aria-live="polite">{}</span>', sentences(row))


class LimitsInWords(RuleLimitInline):
    """The limits of a rule, read-only. The script that hides unused fields needs a form."""

    formset = BaseInlineFormSet  # type: ignore[assignment]
    fields = readonly_fields = ("whose", "in_words")  # type: ignore[assignment]

    @admin.display(description=gettext_lazy("Tier"))
    def whose(self, row: RuleLimit) -> str:
        """Return the tier of the limit, or whom one without a tier is for."""
        if row.tier:
            return row.tier.name
        return _("every other tier") if Tier.objects.exists() else _("everyone")


class RuleFacts(forms.Form):
    """The fields of a rule that its limits' sentences depend on. The rule's own form reports invalid values."""

    cost = forms.IntegerField(min_value=1)
    partition_by = IdentitiesField()
    count_refusals = forms.BooleanField(required=False)
    charge_when = forms.CharField(required=False)
    sync_interval_ms = forms.IntegerField(required=False, min_value=LOCAL_MS, max_value=MAX_SYNC_MS)


def live_preview(typed: QueryDict) -> str:
    """Return sentences about the entered limit, or what is wrong with it."""
    facts = RuleFacts(typed)
    facts.is_valid()
    form = SingleLimitForm(typed, instance=RuleLimit(rule=Rule(**facts.cleaned_data)))
    if form.is_valid():
        return sentences(form.instance)
    if all(error.code == "needed" for errors in form.errors.as_data().values() for error in errors):
        return _("Enter the numbers. This field then describes what the limit does.")
    named = {name: f"{form[name].label}: " if name in form.fields else "" for name in form.errors}
    return " ".join(named[name] + " ".join(map(str, form.errors[name])) for name in named)


def limits_context() -> dict[str, Any]:
    """Return the context of the page's script and its lists of suggestions."""
    return {
        "limit_columns": json.dumps({algorithm.value: _columns_shown(algorithm) for algorithm in Algorithm}),
        "limit_numbers": json.dumps(list(NOT_GIVEN)),
        "timezones": _timezones(),
    }


def _columns_shown(algorithm: Algorithm) -> dict[str, list[str]]:
    """Return the columns that an algorithm uses, by calendar."""
    calendars = ("", *CALENDARS) if "calendar" in algorithm.options else ("",)
    return {calendar: sorted(columns_used(algorithm, calendar)) for calendar in calendars}


@lru_cache(maxsize=1)
def _timezones() -> list[str]:
    return sorted(available_timezones())
