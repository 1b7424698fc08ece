"""Reports as CSV: names are those of the models, times in UTC, numbers unformatted."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final

from django.http import HttpResponse

from ...models import CallerUsage, UsageBucket
from ...usage.reports.report import Report
from ...usage.reports.totals import Figures, Point
from ...values.terminal import without_controls

#: The start of a text that spreadsheets read as a formula; a negative number is none.
_FORMULA: Final = re.compile(r"[=+@]|-(?![0-9.]+\Z)", re.ASCII)

Row = dict[str, Any]


def as_csv(report: Any, table: str) -> HttpResponse:
    """Return one table of the report as a file; of callers, these rows."""
    columns, read = TABLES[table]
    response = HttpResponse(content_type="text/csv; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="usage-{table}.csv"'
    writer = csv.DictWriter(response, columns)
    writer.writeheader()
    writer.writerows({name: _cell(value) for name, value in row.items()} for row in read(report))
    return response


def _totals(report: Report) -> list[Row]:
    before = report.before
    return [
        {
            "rule_slug": total.rule_slug,
            "tier_slug": total.tier_slug,
            **_figures(total.figures),
            "requests_before": None if before is None else before.get(total[:2], Figures()).requests,
        }
        for total in report.totals
    ]


def _points(points: Sequence[Point]) -> list[Row]:
    return [{"start": point.start, "end": point.end, **_figures(point.figures)} for point in points]


def _figures(figures: Figures) -> Row:
    units = figures.units if figures.has_costs else None
    counts = {name: getattr(figures, name) for name in UsageBucket.COUNTS}
    return {"requests": figures.requests, **counts, "units": units, "rejection_rate": figures.rejection_rate}


def _top_partitions(report: Report) -> list[Row]:
    return [
        {"caller": report.names.get(row.partition, row.partition), **row._asdict(), **row.figures}
        for row in report.compared(report.top_partitions)
    ]


_COUNTS: Final = tuple(_figures(Figures()))

#: The tables of a report by name: their columns, and how their rows are read. Columns have the names of their values.
TABLES: Final[dict[str, tuple[tuple[str, ...], Callable[[Any], list[Row]]]]] = {
    "totals": (("rule_slug", "tier_slug", *_COUNTS, "requests_before"), _totals),
    "series": (("start", "end", *_COUNTS), lambda report: _points(report.points)),
    "top": (
        ("caller", "requests", "allowed", "rejected", "estimated", "share", "requests_before", "partition"),
        _top_partitions,
    ),
    "callers": (("rule_slug", "caller", "identity", "value", *CallerUsage.COUNTS), list),
}


def _cell(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%dT%H:%M:%SZ")
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, str):
        return value
    return f"'{text}" if _FORMULA.match(text := without_controls(value)) else text
