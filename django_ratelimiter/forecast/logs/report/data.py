"""The report of a replay for programs: one object of JSON, and all tables as CSV."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from ..agreement import Agreement
from ..changes import CallerChange, Change
from ..comparison import ReplayReport
from .text import notes_of, summary_of

#: The columns of the CSV that have numbers of a `Change`.
_NUMBERS = ("requests", "before", "after", "newly", "no_longer", "same", "shadow", "callers_newly", "callers_no_longer")


def json_of(report: ReplayReport) -> dict[str, Any]:
    """Return all results. Times are in UTC; shares are from 0 to 1; `None` = not known."""
    files, changes = report.files, report.changes
    return {
        "answer": next(summary_of(report), None),
        "traffic": {
            "files": files.names,
            "formats": [each.name for each in files.formats],
            "requests": report.decided,
            "exempt": report.exempt,
            "unreached": report.unreached,
            "out_of_order": files.out_of_order,
            "lacking": dict(report.lacking),
            "callers": changes.callers,
            "first": _moment(report.first_us),
            "last": _moment(report.last_us),
            "unreadable": files.unreadable,
            "unreadable_shown": [
                {"file": file, "line": number, "why": why, "text": text} for file, number, why, text in files.shown
            ],
        },
        "before": report.before.version.number,
        "after": None if report.after is None else report.after.version.number,
        "is_difference": report.after is not None,
        "left_out": [{"rule": each.rule, "lacks": list(each.lacks)} for each in report.left_out],
        "not_known": [each._asdict() for each in report.unseen],
        "notes": notes_of(report),
        "check": None if report.check is None else _check(report.check),
        "total": _numbers(changes.total),
        "share_of_requests": changes.share_of_requests if report.is_known else None,
        "share_of_callers": changes.share_of_callers if report.is_known else None,
        **{
            f"by_{subject}": [{"name": name, **_numbers(row)} for name, row in rows.items()]
            for subject, rows in changes.by.items()
        },
        "top_callers": [_caller(each) for each in changes.top],
        "seconds": round(report.seconds, 3),
    }


def csv_of(report: ReplayReport, to: Any) -> None:
    """Write all tables as one. Each row has its kind. Rules that are left out have no numbers."""
    writer = csv.DictWriter(to, ("by", "name", *_NUMBERS, "first"), lineterminator="\n")
    writer.writeheader()
    for row in _rows(report):
        writer.writerow(row | {"name": _plain(row["name"])})


def _rows(report: ReplayReport) -> Iterator[dict[str, Any]]:
    yield {"by": "all", "name": "", **_numbers(report.changes.total)}
    for subject, rows in report.changes.by.items():
        yield from ({"by": subject, "name": name, **_numbers(row)} for name, row in rows.items())
    yield from ({"by": "left_out", "name": each.rule} for each in report.left_out)
    for each in report.changes.top:
        caller = {"newly": each.newly, "no_longer": each.no_longer, "first": _moment(each.first_us)}
        yield {"by": "caller", "name": each.caller, **caller}


def _plain(text: str) -> str:
    """Return a text that spreadsheets do not read as a formula: names of views and callers come from outside."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text


def _numbers(change: Change) -> dict[str, int]:
    return asdict(change) | {"same": change.same}


def _caller(each: CallerChange) -> dict[str, Any]:
    found = asdict(each)
    return found | {"first": _moment(found.pop("first_us"))}


def _check(check: Agreement) -> dict[str, Any]:
    return {
        "sentences": check.sentences(),
        "share_of_traffic": check.total.share,
        "since": check.since and check.since.isoformat(),
        "until": check.until and check.until.isoformat(),
        "by_rule": [
            {"rule": rule, "tier": tier, **asdict(each)} for (rule, tier), each in sorted(check.by_rule.items())
        ],
    }


def _moment(us: int | None) -> str | None:
    return None if us is None else datetime.fromtimestamp(us / 1_000_000, UTC).isoformat(timespec="milliseconds")
