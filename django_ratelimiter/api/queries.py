"""Query parameters of the views: periods, rules and tiers. Invalid values get a 400."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.utils import timezone
from django.utils.translation import gettext_lazy as _
from rest_framework import serializers
from rest_framework.request import Request

from ..conf import has_identity, settings
from ..models import TopCaller
from ..rules.records import MODES
from ..usage.reports import totals
from ..usage.reports.coverage import Period
from ..usage.times import Granularity, end_from
from ..values.partitions import IDENTITIES, NAMED
from .pagination import MAX_PAGE_SIZE, PAGE_SIZE

DEFAULT: Final = "24h"
#: Up to 999 minutes or hours, or 366 days; or a period of the calendar.
_LENGTH: Final = (
    rf"([1-9][0-9]{{0,2}}[mh]|([1-9][0-9]?|[12][0-9]{{2}}|3[0-5][0-9]|36[0-6])d|{'|'.join(totals.CALENDAR)})"
)
_UNITS: Final = {"m": "minutes", "h": "hours", "d": "days"}
#: Nothing was counted after this, and time zones do not work at the end of time.
_FIRST: Final = datetime(1972, 1, 1, tzinfo=UTC)
_LAST: Final = datetime(9998, 1, 1, tzinfo=UTC)
#: Slugs of rules, including those written in code, and of tiers.
_SLUG: Final = r"[A-Za-z0-9_.:-]"
_NO_SLUG: Final = _("A slug has at most 50 letters, digits, or any of _ . : -")


class Query(serializers.Serializer[Any]):
    """The parameters of a view."""

    page = serializers.IntegerField(required=False, min_value=1, help_text="The number of the page, from 1.")
    page_size = serializers.IntegerField(
        required=False, min_value=1, max_value=MAX_PAGE_SIZE, help_text=f"Rows of a page. Default: {PAGE_SIZE}."
    )


class RulesQuery(Query):
    mode = serializers.ChoiceField(MODES, required=False, help_text="Only rules in this mode.")


class _TextField(serializers.RegexField):
    """A text that matches the whole pattern; `wrong` is the error message for others."""

    def __init__(self, pattern: str, wrong: Any, **options: Any) -> None:
        messages = {"invalid": wrong, "blank": wrong}
        super().__init__(rf"^{pattern}\Z", required=False, trim_whitespace=False, error_messages=messages, **options)


class EndField(serializers.DateTimeField):
    """An end: a time, with its own offset if it has one, or a date, which includes that day."""

    def to_internal_value(self, value: Any) -> datetime:
        try:
            return end_from(value if isinstance(value, str) else "")
        except (ValueError, OverflowError):
            self.fail("invalid", format="YYYY-MM-DD[Thh:mm[:ss[.uuuuuu]][+HH:MM|-HH:MM|Z]]")


class PeriodQuery(Query):
    """A period, by its length or name, and its end. After validation, `validated_data["span"]` is its Period.

    By length, so that every combination of valid values is valid, as OpenAPI requires.
    """

    period = _TextField(
        _LENGTH,
        _("Write a length such as 90m, 36h or 30d, and at most 366d."),
        help_text="Length of the period, such as 90m, 36h or 30d, and at most 366d; or "
        f"{', '.join(totals.CALENDAR[:-1])} or {totals.CALENDAR[-1]}; {DEFAULT} if not given.",
    )
    until = EndField(
        required=False, help_text="End of the period, exclusive; a date alone includes that day. Default: now."
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Compute the period. Days are in the project's time zone."""
        now = totals.last(timedelta(0)).end
        end = min(max(attrs.get("until", now), _FIRST), _LAST).astimezone(UTC)
        text = attrs.get("period", DEFAULT)
        local = end.astimezone(timezone.get_default_timezone())
        if text in totals.CALENDAR:
            attrs["span"] = totals.named(text, local - timedelta.resolution * ("until" in attrs))  # midnight ends a day
            return attrs
        number, unit = int(text[:-1]), text[-1]
        length = timedelta(**{_UNITS[unit]: number})
        start = (local - length).astimezone(UTC) if unit == "d" else end - length  # days end at the same time of day
        attrs["span"] = Period(start, end)
        return attrs


class TotalsQuery(PeriodQuery):
    rule = _TextField(rf"{_SLUG}{{1,50}}", _NO_SLUG, help_text="Only this rule, by its slug.")
    tier = _TextField(
        rf"{_SLUG}{{1,50}}", _NO_SLUG, allow_blank=True, help_text="Only this tier, by its slug; empty = no tier."
    )


class UsageQuery(TotalsQuery):
    granularity = serializers.ChoiceField(
        [granularity.value for granularity in Granularity],
        required=False,
        help_text="Width of a bucket. Default: minutes for up to 3 hours, hours for up to 8 days, days beyond, "
        "and wider ones where these are deleted.",
    )


class PartitionsQuery(PeriodQuery):
    granularity = serializers.ChoiceField(
        [Granularity.HOUR.value, Granularity.DAY.value],
        required=False,
        help_text="Add up the top partitions of each hour, or of each day. Default: hours in periods up to 8 days, "
        "else days; also days where hours are deleted.",
    )
    by = serializers.ChoiceField(
        ["allowed", "rejected"], default="allowed", help_text="The figure that they are sorted by."
    )


class TopCallersQuery(PeriodQuery):
    identity = _TextField(
        r"[^\x00]{1,200}", _("Write an identity such as user, ip or api_key."),
        help_text="What callers are told apart by: user if not given.",
    )  # fmt: skip
    by = serializers.ChoiceField(
        ["requests", "rejected"], default="requests", help_text="The figure that they are sorted by."
    )

    def validate_identity(self, name: str) -> str:
        """Reject a name that no identity of this project has, and none had when usage was recorded."""
        if not has_identity(name) and not TopCaller.objects.filter(identity=name).exists():
            known = ", ".join((*IDENTITIES, *settings.IDENTITIES, *NAMED))
            text = _("There is no identity “%(name)s”. Write one of %(known)s.")
            raise serializers.ValidationError(text % {"name": name, "known": known})
        return name


def parse_query(query_class: type[Query], request: Request) -> dict[str, Any]:
    """Return the valid parameters of a request. Raises ValidationError, for a response with 400."""
    query = query_class(data={name: request.query_params[name] for name in request.query_params})
    query.is_valid(raise_exception=True)
    return dict(query.validated_data)
