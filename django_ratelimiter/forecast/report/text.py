"""The report of a replay as text, in tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

from django.utils.translation import gettext as _
from django.utils.translation import ngettext, pgettext

from ..agreement import Agreement
from ..blind_spots import rules_left_out
from ..comparison import Comparison
from ..difference import ChangeRow, Difference

#: Maximum rows of views and hours that are shown; the others are in --json and --csv.
MAX_ROWS = 24


def lines_of(found: Comparison, check: Agreement | None) -> Iterator[str]:
    """Yield the lines of the report."""
    difference = found.difference
    yield traffic_of(found)
    yield from notes_of(found)
    yield ""
    yield _("Self-check")
    for sentence in check_in_words(check):
        yield f"  {sentence}"
    if check is not None:
        yield from _indented(agreement_table(check))
    yield ""
    yield from summary_of(found)
    for title, rows in tables_of(difference):
        missing = rules_left_out(found.left_out) if rows is difference.by_rule else []
        if not rows and not missing:
            continue
        yield ""
        if rows:
            yield from _indented(change_table(title, rows, is_difference=found.after is not None))
        else:
            yield title
        yield from (f"  {each}" for each in missing)
    if found.after is not None and difference.top:
        yield ""
        yield _("Callers who are newly rejected, those with most such requests first")
        yield from _indented(callers_table(difference))


def check_in_words(check: Agreement | None) -> Sequence[str]:
    """Return the result of the self-check; the reason if there is none, because the rules are not the current ones."""
    if check is None:
        return [_("None: usage was recorded under the rules in force, and --against names other rules.")]
    return list(check.sentences())


def traffic_of(found: Comparison) -> str:
    """Return, as text, what was replayed."""
    if not found.last_us:
        return _("The log contains no request that rules can apply to.")
    difference = found.difference
    words = {
        "requests": _requests(found.decided),
        "callers": _callers(difference.callers),
        "first": _moment(found.first_us),
        "last": _moment(found.last_us),
    }
    return _("Traffic: %(requests)s of %(callers)s, %(first)s to %(last)s (UTC).") % words


def notes_of(found: Comparison) -> list[str]:
    """Return, as text, what the numbers do not include."""
    notes = list(found.doubts)
    if found.exempt:
        text = ngettext(
            "%s request is for a path or view that no rule applies to.",
            "%s requests are for paths or views that no rule applies to.",
            found.exempt,
        )
        notes.append(text % f"{found.exempt:,}")
    if found.inline:
        text = ngettext(
            "%s request is for a view with rates in its code, which are left out.",
            "%s requests are for views with rates in their code, which are left out.",
            found.inline,
        )
        notes.append(text % f"{found.inline:,}")
    if found.unknown_users:
        text = ngettext(
            "%s user of the log is not in this database and counts as anonymous.",
            "%s users of the log are not in this database; they count as anonymous.",
            found.unknown_users,
        )
        notes.append(text % f"{found.unknown_users:,}")
    if found.out_of_order:
        text = ngettext(
            "%s line is earlier than a line before it.",
            "%s lines are earlier than a line before them.",
            found.out_of_order,
        )
        notes.append(text % f"{found.out_of_order:,}")
    return notes


def tables_of(difference: Difference) -> list[tuple[str, Mapping[str, ChangeRow]]]:
    """Return the tables by their titles."""
    return [
        (_("Rule"), difference.by_rule),
        (_("Tier"), difference.by_tier),
        (pgettext("code that answers requests", "View"), difference.by_view),
        (_("Hour (UTC)"), difference.by_hour),
    ]


def percent(part: float, whole: float) -> str:
    """Return a share in percent; empty if the whole is 0."""
    if not whole:
        return ""
    share = 100 * part / whole
    return "0 %" if not share else f"{share:.3g} %" if share >= 0.001 else "< 0.001 %"


def summary_of(found: Comparison) -> Iterator[str]:
    """Yield the result, in sentences; nothing if no rule was decided."""
    difference, total = found.difference, found.difference.total
    if not total.requests:
        return
    if found.after is None:
        text = _("Rejected by these rules: %(number)s (%(share)s).")
        yield text % {"number": _requests(total.before), "share": percent(total.before, total.requests)}
        return
    for text, requests, callers in (
        (_("Newly rejected"), total.newly, difference.newly_callers),
        (_("No longer rejected"), total.no_longer, difference.no_longer_callers),
    ):
        yield _("%(what)s: %(requests)s (%(share)s), %(callers)s (%(of_callers)s).") % {
            "what": text,
            "requests": _requests(requests),
            "share": percent(requests, total.requests),
            "callers": _callers(callers),
            "of_callers": percent(callers, difference.callers),
        }
    yield _("The same: %(requests)s (%(share)s).") % {
        "requests": _requests(total.same),
        "share": percent(total.same, total.requests),
    }
    if total.shadow:
        yield _("Rules in shadow would reject %s more, if they were enforced.") % _requests(total.shadow)


def _requests(number: int) -> str:
    return ngettext("%s request", "%s requests", number) % f"{number:,}"


def _callers(number: int) -> str:
    return ngettext("%s caller", "%s callers", number) % f"{number:,}"


def change_table(
    title: str, rows: Mapping[str, ChangeRow], *, is_difference: bool, most: int = MAX_ROWS
) -> Iterator[Sequence[str]]:
    """Yield the rows of a table, its head first. most: maximum rows; those with the largest changes are kept."""
    if is_difference:
        yield (
            title,
            _("Requests"),
            _("Newly rejected"),
            _("Share"),
            _("Callers"),
            _("No longer"),
            _("Callers"),
            _("Same"),
        )
    else:
        yield title, _("Requests"), _("Rejected"), _("Share")
    for name, row in _busiest(rows, most):
        change = row.requests
        cells = [name or _("(none)"), f"{change.requests:,}"]
        if is_difference:
            cells += [f"{change.newly:,}", percent(change.newly, change.requests), f"{row.newly:,}"]
            cells += [f"{change.no_longer:,}", f"{row.no_longer:,}", f"{change.same:,}"]
        else:
            cells += [f"{change.before:,}", percent(change.before, change.requests)]
        yield cells
    if len(rows) > most:
        yield (_("… and %d more, see --json") % (len(rows) - most),)


def _busiest(rows: Mapping[str, ChangeRow], most: int) -> list[tuple[str, ChangeRow]]:
    """Return the rows with the largest changes, in their order."""
    weights = sorted(rows.items(), key=lambda item: (-item[1].requests.newly, -item[1].requests.requests))
    chosen = {name for name, _row in weights[:most]}
    return [(name, row) for name, row in rows.items() if name in chosen]


def agreement_table(check: Agreement) -> Iterator[Sequence[str]]:
    """Yield the rows of the self-check, the head first; none if nothing could be compared."""
    if check.why_not:
        return
    yield _("Rule"), _("Tier"), _("Recorded"), _("In the log"), _("Share"), _("Rejected then"), _("In the replay")
    for (rule, tier), each in sorted(check.by_rule.items()):
        yield (
            rule,
            tier or _("(none)"),
            f"{each.recorded:,}",
            f"{each.replayed:,}",
            percent(each.replayed, each.recorded),
            f"{each.recorded_rejected:,}",
            f"{each.replayed_rejected:,}",
        )


def callers_table(difference: Difference) -> Iterator[Sequence[str]]:
    """Yield the callers that are newly rejected, the head first."""
    yield _("Caller"), _("Tier"), _("Newly rejected"), _("First at (UTC)"), _("By rule")
    for each in difference.top:
        first = _moment(each.first_us) if each.first_us is not None else ""
        yield each.caller, each.tier or _("(none)"), f"{each.newly:,}", first, each.rule


def _indented(rows: Iterator[Sequence[str]]) -> Iterator[str]:
    """Yield rows in columns: the first one aligned left, numbers aligned right."""
    several = [[str(cell) for cell in row] for row in rows]
    columns = max(map(len, several), default=0)
    whole = [row for row in several if len(row) == columns]
    widths = [max(len(row[column]) for row in whole) for column in range(columns)]
    numeric = [all(row[column][:1].isdigit() or not row[column] for row in whole[1:]) for column in range(columns)]
    for row in several:
        if len(row) < columns:
            yield f"  {row[0]}"
            continue
        cells = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ]
        yield f"  {'  '.join(cells)}".rstrip()


def _moment(us: int) -> str:
    return f"{datetime.fromtimestamp(us // 1_000_000, UTC):%Y-%m-%d %H:%M:%S}"
