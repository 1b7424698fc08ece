"""The report of a replay as one HTML file, with a chart in SVG. It loads nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.template import Context, Engine
from django.utils.translation import get_language, get_language_bidi
from django.utils.translation import gettext as _

from ....rules.formatting import units
from ....usage.reports import chart
from ....values.terminal import visible
from ..comparison import ReplayReport
from .text import (
    agreement_table,
    callers_table,
    change_table,
    check_in_words,
    notes_of,
    summary_of,
    tables_of,
    traffic_of,
)

#: Apart from the project's TEMPLATES, which may have none of Django's.
_ENGINE = Engine(app_dirs=True, libraries={"i18n": "django.templatetags.i18n"})


def html_of(report: ReplayReport) -> str:
    """Return the page."""
    is_difference = report.after is not None
    tables = []
    for name, rows in tables_of(report):
        table = list(change_table(name, rows, is_difference=is_difference, most=len(rows))) if rows else []
        tables.append((name, _cells(table)))
    context = {
        "language": get_language() or "en",
        "direction": "rtl" if get_language_bidi() else "ltr",
        "title": _("What the change would have done") if is_difference else _("What the rules would have done"),
        "traffic": traffic_of(report),
        "summary": list(summary_of(report)),
        "chart": _chart(report),
        "kinds": {"same": _("rejected by both"), "newly": _("newly rejected"), "better": _("no longer rejected")}
        if is_difference
        else {"same": _("rejected")},
        "notes": [*map(visible, notes_of(report))],
        "check": check_in_words(report.check),
        "check_table": _cells(list(agreement_table(report.check)) if report.check else []),
        "tables": tables,
        "callers": _cells(list(callers_table(report.changes.top)) if is_difference and report.changes.top else []),
    }
    return _ENGINE.get_template("django_ratelimiter/replay.html").render(Context(context))


def _chart(report: ReplayReport) -> chart.Chart:
    """Return bars for each hour: rejected by both, newly, and no longer; or all that are rejected."""
    hours = report.changes.by["hour"]
    stacks: list[dict[str, float]] = [
        {"same": row.before - row.no_longer, "newly": row.newly, "better": row.no_longer}
        if report.after is not None
        else {"same": row.before}
        for row in hours.values()
    ]
    labels = [
        f"{name}: {', '.join(units(round(amount)) for amount in stack.values())}"
        for name, stack in zip(hours, stacks, strict=True)
    ]
    every, end = max(1, len(hours) // 8), 0.93 * len(hours)  # a label at the very end would be cut off
    ticks = [
        chart.Tick(chart.percent(100 * place / len(hours)), name[5:])
        for place, name in enumerate(hours)
        if not place % every and place < end
    ]
    return chart.stacked(stacks, labels, ticks)


def _cells(rows: Sequence[Sequence[str]]) -> dict[str, Any] | None:
    """Return the cells of a table, its head apart, each with whether its column has numbers; `None` = no table."""
    if not rows:
        return None
    head, *body = ([*map(visible, row)] for row in rows)
    numeric = [all(row[column][:1].isdigit() or not row[column] for row in body) for column in range(len(head))]
    numeric[0] = False
    return {
        "head": list(zip(head, numeric, strict=True)),
        "rows": [(row[0], list(zip(row[1:], numeric[1:], strict=True))) for row in body],
    }
