"""The report of a replay for programs: one object of JSON, and all tables as CSV."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from ..agreement import Agreement
from ..comparison import Comparison
from ..difference import CallerChange, ChangeRow, Difference
from ..logs.reading import LogFiles
from .text import notes_of


def json_of(found: Comparison, check: Agreement | None, files: LogFiles) -> dict[str, Any]:
    """Return all results. Times are in UTC; shares are from 0 to 1."""
    difference = found.difference
    return {
        "traffic": {
            "files": files.names,
            "formats": [each.name for each in files.formats],
            "requests": found.decided,
            "exempt": found.exempt,
            "callers": difference.callers,
            "first": _moment(found.first_us),
            "last": _moment(found.last_us),
            "unreadable": files.unreadable,
            "unreadable_shown": [
                {"file": file, "line": number, "why": why, "text": text} for file, number, why, text in files.shown
            ],
        },
        "before": found.before.version.number,
        "after": None if found.after is None else found.after.version.number,
        "is_difference": found.after is not None,
        "left_out": [{"rule": each.rule, "lacks": list(each.lacks)} for each in found.left_out],
        "notes": notes_of(found),
        "check": None if check is None else _check(check),
        "total": found.difference.total._asdict() | {"same": difference.total.same},
        "share_of_requests": difference.share_of_requests,
        "share_of_callers": difference.share_of_callers,
        "callers_newly_rejected": difference.newly_callers,
        "callers_no_longer_rejected": difference.no_longer_callers,
        **{f"by_{kind}": [_row(name, row) for name, row in rows.items()] for kind, rows in _tables(difference)},
        "top_callers": [_caller(each) for each in difference.top],
        "seconds": round(found.seconds, 3),
    }


def csv_of(found: Comparison, to: Any) -> None:
    """Write all tables as one. Each row has its kind. Rules that are left out have no numbers."""
    writer = csv.writer(to, lineterminator="\n")
    columns = ("requests", "before", "after", "newly", "no_longer", "same", "shadow")
    writer.writerow(["by", "name", *columns, "callers_newly", "callers_no_longer", "first"])
    difference, total = found.difference, found.difference.total
    numbers = [getattr(total, column) for column in columns]
    writer.writerow(["all", "", *numbers, difference.newly_callers, difference.no_longer_callers, ""])
    for kind, rows in _tables(difference):
        for name, row in rows.items():
            numbers = [getattr(row.requests, column) for column in columns]
            writer.writerow([kind, _plain(name), *numbers, row.newly, row.no_longer, ""])
    for slug in dict.fromkeys([rule.rule for rule in found.left_out]):
        writer.writerow(["left_out", _plain(slug), *[""] * 10])
    for each in difference.top:
        cells = ["", "", "", each.newly, each.no_longer, "", "", "", ""]
        writer.writerow(["caller", _plain(each.caller), *cells, _moment(each.first_us) if each.first_us else ""])


def _plain(text: str) -> str:
    """Return a text that spreadsheets do not read as a formula: names of views and callers come from outside."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text


def _tables(difference: Difference) -> Iterator[tuple[str, Mapping[str, ChangeRow]]]:
    yield "rule", difference.by_rule
    yield "tier", difference.by_tier
    yield "view", difference.by_view
    yield "hour", difference.by_hour


def _row(name: str, row: ChangeRow) -> dict[str, Any]:
    change = row.requests
    callers = {"callers_newly": row.newly, "callers_no_longer": row.no_longer}
    return {"name": name, **change._asdict(), "same": change.same, **callers}


def _caller(each: CallerChange) -> dict[str, Any]:
    found = each._asdict()
    first = found.pop("first_us")
    return found | {"first": None if first is None else _moment(first)}


def _check(check: Agreement) -> dict[str, Any]:
    total = check.total
    return {
        "sentences": check.sentences(),
        "share_of_traffic": total.share,
        "since": check.since and check.since.isoformat(),
        "until": check.until and check.until.isoformat(),
        "by_rule": [
            {
                "rule": rule,
                "tier": tier,
                "recorded": each.recorded,
                "replayed": each.replayed,
                "recorded_rejected": each.recorded_rejected,
                "replayed_rejected": each.replayed_rejected,
            }
            for (rule, tier), each in sorted(check.by_rule.items())
        ],
    }


def _moment(us: int) -> str:
    return datetime.fromtimestamp(us / 1_000_000, UTC).isoformat(timespec="milliseconds")
