"""The views. Those for staff need the permission to view usage reports; `MeView` is for every known caller."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from django.db.models import QuerySet, Sum
from django.utils import timezone
from django.utils.translation import gettext as _
from rest_framework.exceptions import NotFound, PermissionDenied
from rest_framework.request import Request
from rest_framework.response import Response

from ..exceptions import AccessDenied, EngineUnavailable
from ..inspection.caller import open_key
from ..inspection.report import PRIVATE, encoded
from ..models import TopPartition, UsageBucket
from ..rules import cache
from ..rules.records import RuleRecord
from ..usage.live.names import revealed_to
from ..usage.reports.coverage import BucketRange, Period, read_coverage
from ..usage.reports.report import ESTIMATES, Report, TopPartitionRow, few_last
from ..usage.times import Granularity, floor
from . import serializers
from .me import OwnReport, own_report
from .pagination import BucketPages, Pages
from .permissions import IsKnownCaller, MayViewReports
from .queries import PartitionsQuery, Query, RulesQuery, TopCallersQuery, TotalsQuery, UsageQuery, parse_query
from .support.answers import ApiView
from .throttling import MeThrottle


class _Report(ApiView):
    """A view for staff. query_class: its parameters."""

    permission_classes = (MayViewReports,)
    throttle_scope = "ratelimit-reports"
    pagination_class: Any = Pages
    query_class: type[Query] = Query
    queryset: Any = UsageBucket.objects.none()  # no rows: DRF's HTML page of a list asks for some

    def page(self, rows: Any) -> Response:
        """Return the requested page of these rows."""
        return self.get_paginated_response(self.get_serializer(self.paginate_queryset(rows), many=True).data)


class RuleListView(_Report):
    """The current rules, by priority, then slug."""

    serializer_class = serializers.RateLimitRuleSerializer
    query_class = RulesQuery

    def get(self, request: Request) -> Response:
        mode = parse_query(self.query_class, request).get("mode")
        return self.page([rule for rule in cache.current_rules().rules if mode in (None, rule.mode)])


class RuleDetailView(_Report):
    """One current rule, by its slug."""

    serializer_class = serializers.RateLimitRuleSerializer
    pagination_class = None

    def get(self, request: Request, slug: str) -> Response:
        rule = _rule(slug)
        if rule is None:
            raise NotFound(_no_rule(slug))
        return Response(self.get_serializer(rule).data)


class PartitionsView(_Report):
    """The top partitions of a rule, sorted, in all hours or days that overlap the period.

    At most 100 are stored for each hour or day.
    """

    serializer_class = serializers.RateLimitPartitionSerializer
    query_class = PartitionsQuery

    def get(self, request: Request, slug: str) -> Response:
        query = parse_query(self.query_class, request)
        rows: QuerySet[TopPartition] = TopPartition.objects.filter(rule_slug=slug.replace("\x00", ""))
        if _rule(slug) is None and not rows.exists():  # usage outlives its rule
            raise NotFound(_no_rule(slug))
        span: Period = query["span"]
        granularity = Granularity(query.get("granularity") or Report(span).partitions_by)
        start = floor(span.start, granularity, timezone.get_default_timezone())
        found = (
            rows.filter(BucketRange(granularity, start, span.end).condition)
            .values_list("partition")
            .annotate(sum_allowed=Sum("allowed"), sum_rejected=Sum("rejected"), estimates=ESTIMATES)
            .order_by(few_last(f"sum_{query['by']}"), f"-sum_{query['by']}", "partition")
        )
        top = map(TopPartitionRow.of, self.paginate_queryset(found) or ())
        named = _named(request, ({**row._asdict(), **row.figures} for row in top))
        return self.get_paginated_response(self.get_serializer(named, many=True).data)


def _named(request: Request, rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows with the names of their partitions, for those who may see them."""
    rows = list(rows)
    known = {}
    with suppress(EngineUnavailable):
        known = revealed_to(request.user, [row["partition"] for row in rows])
    shown = {
        digest: {"kind": name.kind, "value": open_key(name.value) if name.kind == "api_key" else name.value}
        for digest, name in known.items()
    }
    return [{**row, "name": shown.get(row["partition"])} for row in rows]


class TopCallersView(_Report):
    """The top callers of one identity over all rules, sorted, in all hours that overlap the period, or all days."""

    serializer_class = serializers.RateLimitTopCallerSerializer
    query_class = TopCallersQuery

    def get(self, request: Request) -> Response:
        query = parse_query(self.query_class, request)
        report = Report(query["span"], identity=query.get("identity", "user"), by_rejected=query["by"] == "rejected")
        rows = report.compared([*map(TopPartitionRow.of, self.paginate_queryset(report.all_top_partitions) or ())])
        found = _named(request, ({**row._asdict(), **row.figures} for row in rows))
        return self.get_paginated_response(self.get_serializer(found, many=True).data)


class UsageView(_Report):
    """Usage buckets of one granularity that begin in the period, oldest first, then by rule and tier."""

    serializer_class = serializers.RateLimitBucketSerializer
    query_class = UsageQuery
    pagination_class = BucketPages

    def get(self, request: Request) -> Response:
        query = parse_query(self.query_class, request)
        span, granularity = query["span"], query.get("granularity")
        if granularity is None:
            coverage = read_coverage()
            span = coverage.widen(span)
            granularity = coverage.granularity(span)
        rows = UsageBucket.objects.filter(BucketRange(granularity, *span).condition)
        for name in ("rule", "tier"):
            if name in query:
                rows = rows.filter(**{f"{name}_slug": query[name]})
        return self.page(rows)


class TotalsView(_Report):
    """The sums of each rule and tier with usage in the period."""

    serializer_class = serializers.RateLimitTotalSerializer
    query_class = TotalsQuery

    def get(self, request: Request) -> Response:
        query = parse_query(self.query_class, request)
        return self.page(
            [
                total
                for total in Report(query["span"]).totals
                if query.get("rule", total.rule_slug) == total.rule_slug
                and query.get("tier", total.tier_slug) == total.tier_slug
            ]
        )


class MeView(ApiView):
    """The caller's own tier, limits and last 30 days. Reading them uses no quota."""

    permission_classes = (IsKnownCaller,)
    throttle_classes = (MeThrottle,)
    throttle_scope = "ratelimit-me"
    answers = OwnReport

    def get(self, request: Request) -> Response:
        try:
            return Response(encoded(own_report(request._request)), headers=PRIVATE)
        except AccessDenied as error:
            raise PermissionDenied from error


def _rule(slug: str) -> RuleRecord | None:
    return next((rule for rule in cache.current_rules().rules if rule.slug == slug), None)


def _no_rule(slug: str) -> str:
    return _("There is no rule “%(slug)s”.") % {"slug": slug}
