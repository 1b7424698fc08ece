"""The report of a replay as text, in tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

from django.utils.translation import gettext as _
from django.utils.translation import ngettext, pgettext

from ....values.terminal import Table
from ..agreement import Agreement
from ..blind_spots import lacking_in_words
from ..changes import CallerChange, Change
from ..comparison import ReplayReport
from ..reading import LogFiles

#: Maximum rows of views and hours that are shown; the others are in --json and --csv.
MAX_ROWS = 24


def not_known(report: ReplayReport) -> str:
    """Return the result of a replay that could judge nothing, as text."""
    if report.after is None:
        return _("Not known: no rule could be replayed.")
    return _("Not known: no rule that differs could be replayed.")


def lines_of(report: ReplayReport) -> Iterator[str | Table]:
    """Yield the lines and tables of the report."""
    summary = [*summary_of(report)]
    yield from summary[:1]
    yield traffic_of(report)
    yield from notes_of(report)
    yield from ("", _("Self-check"), *(f"  {sentence}" for sentence in check_in_words(report.check)))
    if report.check is not None and not report.check.why_not:
        yield Table([*agreement_table(report.check)])
    yield from ("", *summary[1:])
    for title, rows in tables_of(report):
        if rows:
            yield from ("", Table([*change_table(title, rows, is_difference=report.after is not None)]))
    if report.after is not None and report.changes.top:
        yield from ("", _("Callers who are newly rejected, those with most such requests first"))
        yield Table([*callers_table(report.changes.top)])


def check_in_words(check: Agreement | None) -> Sequence[str]:
    """Return the result of the self-check; the reason if there is none, because the rules are not the current ones."""
    if check is None:
        return [_("None: usage was recorded under the rules in force, and --against names other rules.")]
    return list(check.sentences())


def traffic_of(report: ReplayReport) -> str:
    """Return, as text, what was replayed."""
    if not report.last_us:
        return _("The log contains no request that rules can apply to.")
    words = {
        "requests": _requests(report.decided),
        "callers": _callers(report.changes.callers),
        "first": moment(report.first_us),
        "last": moment(report.last_us),
    }
    return _("Traffic: %(requests)s of %(callers)s, %(first)s to %(last)s (UTC).") % words


def notes_of(report: ReplayReport) -> list[str]:
    """Return, as text, what the numbers do not include."""
    counted = (
        (
            report.exempt,
            ngettext(
                "%s request is for a path or view that no rule applies to.",
                "%s requests are for paths or views that no rule applies to.",
                report.exempt,
            ),
        ),
        (
            report.inline,
            ngettext(
                "%s request is for a view with rates in its code, which are left out.",
                "%s requests are for views with rates in their code, which are left out.",
                report.inline,
            ),
        ),
        (
            report.unreached,
            ngettext(
                "%s line is of a request that never reaches Django: PRI, CONNECT, OPTIONS *, or broken.",
                "%s lines are of requests that never reach Django: PRI, CONNECT, OPTIONS *, or broken.",
                report.unreached,
            ),
        ),
        (
            report.unknown_users,
            ngettext(
                "%s user of the log is not in this database and counts as anonymous.",
                "%s users of the log are not in this database; they count as anonymous.",
                report.unknown_users,
            ),
        ),
    )
    files = report.files
    first = [*map(str, report.left_out), *map(str, report.unseen), *(files.blind() if len(files.names) > 1 else ())]
    first += [*files.unreadable_in_words(), *_out_of_order(files)]
    partly = [each for each in sorted(report.lacking.items()) if each[1] < report.decided]
    first += [f"{lacking_in_words(name, number, report.decided)}." for name, number in partly]
    if "years" in files.times_lack:
        first.append(_("The log has no years: they follow from the order of the lines, and from the time of the file."))
    if "zones" in files.times_lack:
        first.append(_("The log has no time zone; its times are read in that of the project, or of --timezone."))
    return [*first, *report.doubts] + [text % f"{number:,}" for number, text in counted if number]


def _out_of_order(files: LogFiles) -> Iterator[str]:
    number = files.out_of_order
    if number:
        text = ngettext(
            "%s line is earlier than a line before it.", "%s lines are earlier than a line before them.", number
        )
        fate = _("Replayed as they stand.") if files.any_order else _("Left out: more than 5 minutes is too much.")
        yield f"{text % f'{number:,}'} {fate}"


def tables_of(report: ReplayReport) -> list[tuple[str, Mapping[str, Change]]]:
    """Return the tables by their titles."""
    by = report.changes.by
    return [
        (_("Rule"), by["rule"]),
        (_("Tier"), by["tier"]),
        (pgettext("code that answers requests", "View"), by["view"]),
        (_("Hour (UTC)"), by["hour"]),
    ]


def percent(part: float, whole: float) -> str:
    """Return a share in percent; empty if the whole is 0."""
    if not whole:
        return ""
    share = 100 * part / whole
    return "0 %" if not share else f"{share:.3g} %" if share >= 0.001 else "< 0.001 %"


def summary_of(report: ReplayReport) -> Iterator[str]:
    """Yield the result, in sentences, the answer first; nothing if there are neither rules nor requests."""
    total = report.changes.total
    if not report.is_known:
        yield not_known(report)
    if not report.is_known or not total.requests:
        return
    answer, *figures = _result_of(report)
    before, after = report.before, report.after
    rules = {rule.slug: rule for rule in after.rules} if after and after.tiers == before.tiers else {}
    same = {rule.slug for rule in before.rules if rules.get(rule.slug) == rule}
    is_partial = not same.issuperset(each.rule for each in [*report.left_out, *report.unseen])
    yield f"{answer} {_('But the log does not show all: read what is left out.')}" if is_partial else answer
    yield from figures
    if total.shadow:
        yield _("Rules in shadow would reject %s more, if they were enforced.") % _requests(total.shadow)


def _result_of(report: ReplayReport) -> Iterator[str]:
    total = report.changes.total
    if report.after is None:
        text = _("Rejected by these rules: %(number)s (%(share)s).")
        yield text % {"number": _requests(total.before), "share": percent(total.before, total.requests)}
        return
    callers = _callers(report.changes.callers)
    if total.newly:
        text = _("%(some)s of %(all)s would be newly rejected.")
        yield text % {"some": f"{total.callers_newly:,}", "all": callers}
    else:
        yield _("Nobody of %s would be newly rejected.") % callers
    for text, requests, number in (
        (_("Newly rejected"), total.newly, total.callers_newly),
        (_("No longer rejected"), total.no_longer, total.callers_no_longer),
    ):
        yield _("%(what)s: %(requests)s (%(share)s), %(callers)s (%(of_callers)s).") % {
            "what": text,
            "requests": _requests(requests),
            "share": percent(requests, total.requests),
            "callers": _callers(number),
            "of_callers": percent(number, report.changes.callers),
        }
    yield _("The same: %(requests)s (%(share)s).") % {
        "requests": _requests(total.same),
        "share": percent(total.same, total.requests),
    }


def _requests(number: int) -> str:
    return ngettext("%s request", "%s requests", number) % f"{number:,}"


def _callers(number: int) -> str:
    return ngettext("%s caller", "%s callers", number) % f"{number:,}"


def change_table(
    title: str, rows: Mapping[str, Change], *, is_difference: bool, most: int = MAX_ROWS
) -> Iterator[Sequence[str]]:
    """Yield the rows of a table, its head first. most: maximum rows; those with the largest changes are kept."""
    in_shadow = any(row.shadow for row in rows.values())
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
        yield title, _("Requests"), _("Rejected"), _("Share"), *([_("In shadow")] if in_shadow else [])
    for name, row in _busiest(rows, most):
        cells = [name or _("(none)"), f"{row.requests:,}"]
        if is_difference:
            cells += [f"{row.newly:,}", percent(row.newly, row.requests), f"{row.callers_newly:,}"]
            cells += [f"{row.no_longer:,}", f"{row.callers_no_longer:,}", f"{row.same:,}"]
        else:
            cells += [f"{row.before:,}", percent(row.before, row.requests)]
            cells += [f"{row.shadow:,}"] if in_shadow else []
        yield cells
    if len(rows) > most:
        yield (_("… and %d more, see --json") % (len(rows) - most),)


def _busiest(rows: Mapping[str, Change], most: int) -> list[tuple[str, Change]]:
    """Return the rows with the largest changes, in their order."""
    weights = sorted(rows.items(), key=lambda item: (-item[1].newly, -item[1].requests))
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


def callers_table(top: Sequence[CallerChange]) -> Iterator[Sequence[str]]:
    """Yield the callers that are newly rejected, the head first."""
    yield _("Caller"), _("Tier"), _("Newly rejected"), _("First at (UTC)"), _("By rule")
    for each in top:
        yield each.caller, each.tier or _("(none)"), f"{each.newly:,}", moment(each.first_us or 0), each.rule


def moment(us: int) -> str:
    """Return a time in UTC, as text."""
    return f"{datetime.fromtimestamp(us // 1_000_000, UTC):%Y-%m-%d %H:%M:%S}"
