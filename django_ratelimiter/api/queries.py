"""What may be asked for in a query string: which periods, rules and tiers. Wrong values are answered with 400."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final

from django.utils.translation import gettext_lazy as _
from rest_framework import serializers
from rest_framework.filters import BaseFilterBackend
from rest_framework.request import Request

from ..rules.ruleset import MODES
from ..usage import reports
from ..usage.reports import Period
from ..usage.times import Step, aware
from .pagination import LARGEST_PAGE, RANGES

LENGTHS: Final = {
    "1h": timedelta(hours=1),
    "24h": timedelta(hours=24),
    "7d": timedelta(days=7),
    "30d": timedelta(days=30),
    "90d": timedelta(days=90),
    "365d": timedelta(days=365),
}
DEFAULT: Final = "24h"
LONGEST: Final = timedelta(days=366)
SLUG: Final = 50


class Query(serializers.Serializer[Any]):
    """The parameters of a view; those of its pages are told to schemas by their class."""

    page = serializers.IntegerField(required=False, min_value=1)
    page_size = serializers.IntegerField(required=False, min_value=1, max_value=LARGEST_PAGE)


class RulesQuery(Query):
    mode = serializers.ChoiceField(MODES, required=False, help_text="Only rules in this mode.")


class PeriodQuery(Query):
    """A period, by its length up to now or by its ends. Once valid, `validated_data["span"]` is its Period."""

    period = serializers.ChoiceField(
        list(LENGTHS), required=False, help_text=f"So long until now; {DEFAULT} if no ends are given."
    )
    since = serializers.DateTimeField(required=False, help_text="From then on; needs `until`, and no `period`.")
    until = serializers.DateTimeField(
        required=False, help_text=f"Up to then, and without it; at most {LONGEST.days} days after `since`."
    )

    def validate_since(self, moment: datetime) -> datetime:
        """A year that every time zone can reckon with."""
        return _within_calendar(moment)

    def validate_until(self, moment: datetime) -> datetime:
        """The same."""
        return _within_calendar(moment)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Work out the period."""
        given = {name for name in ("since", "until") if name in attrs}
        if given and "period" in attrs:
            raise serializers.ValidationError({"period": _("Give a period, or since and until, but not both.")})
        for name in {"since", "until"} - given if given else ():
            raise serializers.ValidationError({name: _("Both since and until are needed.")})
        if not given:
            attrs["span"] = reports.last(LENGTHS[attrs.get("period", DEFAULT)])
            return attrs
        span = Period(aware(attrs["since"]), aware(attrs["until"]))
        if span.start >= span.end:
            raise serializers.ValidationError({"until": _("Must be later than since.")})
        if span.end - span.start > LONGEST:
            raise serializers.ValidationError({"until": _("At most %d days after since.") % LONGEST.days})
        attrs["span"] = span
        return attrs


class TotalsQuery(PeriodQuery):
    rule = serializers.CharField(required=False, max_length=SLUG, help_text="Only this rule, by its slug.")
    tier = serializers.CharField(
        required=False, max_length=SLUG, allow_blank=True, help_text="Only this tier, by its slug; empty = no tier."
    )


class UsageQuery(TotalsQuery):
    granularity = serializers.ChoiceField(
        [step.value for step in Step],
        required=False,
        help_text="How wide a bucket is; else minutes for up to 3 hours, hours for up to 8 days, days beyond.",
    )


class PartitionsQuery(PeriodQuery):
    granularity = serializers.ChoiceField(
        [Step.HOUR.value, Step.DAY.value],
        required=False,
        help_text="Whether the heaviest of each hour are added up, or those of each day; else days beyond 8 days.",
    )
    by = serializers.ChoiceField(["allowed", "denied"], default="allowed", help_text="What they are sorted by.")


class QueryFilter(BaseFilterBackend):
    """Tells schemas of the parameters of a view's `query_class`, which the view itself obeys."""

    def filter_queryset(self, request: Request, queryset: Any, view: Any) -> Any:
        return queryset

    def get_schema_operation_parameters(self, view: Any) -> list[dict[str, Any]]:
        return [
            {
                "name": name,
                "in": "query",
                "required": False,
                "description": str(field.help_text),
                "schema": _schema_of(field),
            }
            for name, field in view.query_class().fields.items()
            if name not in RANGES
        ]


def asked(query_class: type[Query], request: Request) -> dict[str, Any]:
    """What a request asks for. Raises ValidationError, which is answered with 400."""
    query = query_class(data={name: request.query_params[name] for name in request.query_params})
    query.is_valid(raise_exception=True)
    return dict(query.validated_data)


def _schema_of(field: serializers.Field[Any, Any, Any, Any]) -> dict[str, Any]:
    if isinstance(field, serializers.ChoiceField):
        return {"type": "string", "enum": list(field.choices)}
    if isinstance(field, serializers.DateTimeField):
        return {"type": "string", "format": "date-time"}
    least = {} if getattr(field, "allow_blank", False) else {"minLength": 1}
    return {"type": "string", "maxLength": SLUG, **least}


def _within_calendar(moment: datetime) -> datetime:
    if not 1970 <= moment.year < 9999:
        raise serializers.ValidationError(_("This year is out of range."))
    return moment
