"""Problems that need attention, as text, each with a link to where it can be fixed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from django.core.checks import ERROR
from django.utils.translation import gettext as _
from django.utils.translation import ngettext, pgettext

from ...identity.proxies import trusting
from ...inspection.references import everybody
from ...inspection.words import at_limit_in_words
from ...rules.formatting import moment_in_words, units, until_in_words
from ...rules.routes import UnknownName
from ..viewer import Viewer
from .attention import RuleDoubts, UsageDoubts
from .health import Health, had_outage_lately
from .last_hour import LastHour
from .status import Status

#: Maximum number of listed rules of one kind.
MAX_NAMED: Final = 5


class Item(NamedTuple):
    """One line. level: "bad" or "warning". links: names and URLs; "" = no page."""

    level: str
    text: str
    links: Sequence[tuple[str, str]] = ()
    hint: str = ""


def status_items(status: Status, health: Health, viewer: Viewer) -> Iterator[Item]:
    """Yield problems of the current version."""
    if problem := status.held.problem:
        yield Item("bad", problem)
    if not status.older:
        return
    text = _(
        "Version %(number)d is not yet in force everywhere: Redis still has version %(older)s. "
        "It is published again each time usage is collected."
    )
    older, shards = ", ".join(map(str, status.older)), len(health.versions)
    if shards > 1:
        older = _("%(older)s in %(some)d of %(all)d shards") % {
            "older": older, "some": sum(status.older.values()), "all": shards}  # fmt: skip
    history = viewer.url("history")
    yield Item(
        "bad",
        text % {"number": status.number, "older": older},
        [(pgettext("of the rules", "History"), history)] if history and viewer.sees_rules else [],
        _("To publish it now: manage.py ratelimit collect"),
    )


def health_items(health: Health) -> Iterator[Item]:
    """Yield problems of Redis."""
    if health.is_degraded:
        yield Item("bad", _("Redis does not answer this process: requests are decided by each rule's failure policy."))
    if health.unanswered:
        text = ngettext("%d shard of Redis does not answer.", "%d shards of Redis do not answer.", health.unanswered)
        yield Item("bad", text % health.unanswered)
    if not health.is_degraded and had_outage_lately():
        yield Item("warning", _("This process did not reach Redis for a while in the last 5 minutes."))


def proxy_items(health: Health) -> Iterator[Item]:
    """Yield proxies that seem not to be trusted."""
    for proxy in sorted(health.proxies)[:MAX_NAMED]:
        text = _("Rejected requests of one address name different callers, as behind a proxy that is not trusted.")
        hint = _(
            "If %(proxy)s is your proxy, set RATELIMITER['TRUSTED_PROXIES'] to %(setting)s: until then all its callers "
            "share one counter. If not, a caller invents these names."
        )
        address = proxy.partition(" ")[0]
        name = {"": _("a public address"), "unix": _("a Unix socket")}.get(address, address)
        yield Item("warning", text, hint=hint % {"proxy": name, "setting": trusting(proxy)})


def usage_items(doubts: UsageDoubts, hour: LastHour, viewer: Viewer, *, is_known: bool) -> Iterator[Item]:
    """Yield problems of usage. is_known: it was collected at least once."""
    if hour.figures.degraded:
        text = ngettext(
            "%(count)s request was decided without Redis in the last hour.",
            "%(count)s requests were decided without Redis in the last hour.",
            hour.figures.degraded,
        )
        yield Item("warning", text % {"count": units(hour.figures.degraded)})
    for rule, until in doubts.exhausted:
        page = viewer.digest_url(everybody(), rule=rule.slug) or viewer.rule_url(rule.slug)
        hint = until and _("Until %(until)s.") % {"until": until_in_words(until)}
        text = _("%(what)s, by the rule:") % {"what": at_limit_in_words(rule)}
        yield Item("bad", text, [(viewer.rule(rule.slug), page)], hint or "")
    for slug, began_at in doubts.rejecting:
        text = _("A rule rejects unusually many requests since %s:") % moment_in_words(began_at)
        yield Item("warning", text, [(viewer.rule(slug), viewer.report_url(slug))])
    if not is_known:
        hint = _(
            "Run manage.py ratelimit collect now, and from then on each minute: by cron, or as a task of Celery or "
            "Django. If it runs already, no request had matched a rule when it last ran."
        )
        if doubts.waiting:
            hint = _(
                "Requests have been counted, and wait in Redis. Run manage.py ratelimit collect now, and from "
                "then on each minute: by cron, or as a task of Celery or Django."
            )
        yield Item("warning", _("Nothing has been collected yet, so there are no figures."), hint=hint)
    elif doubts.late_seconds is not None:
        minutes = max(round(doubts.late_seconds / 60), 1)
        text = ngettext(
            "Counts have been waiting in Redis for %(count)s minute. They are collected by the task "
            "django_ratelimiter.collect_usage or by manage.py ratelimit collect.",
            "Counts have been waiting in Redis for %(count)s minutes. They are collected by the task "
            "django_ratelimiter.collect_usage or by manage.py ratelimit collect.",
            minutes,
        )
        yield Item("warning", text % {"count": units(minutes)})


def rule_items(doubts: RuleDoubts, viewer: Viewer) -> Iterator[Item]:
    """Yield problems of rules and settings."""
    for level, text, found in (
        ("bad", _("Not in force:"), [(slug, str(reason)) for slug, reason in doubts.left_out]),
        ("warning", _("Matches no request:"), [(slug, _why(unknown)) for slug, unknown in doubts.dead]),
    ):
        for slug, hint in found[:MAX_NAMED]:
            yield Item(level, text, [_link(viewer, slug)], hint)
        if more := len(found[MAX_NAMED:]):
            text = ngettext("%d more rule has the same problem:", "%d more rules have the same problem:", more) % more
            yield Item("warning", text, [(_("Rules"), viewer.url("rule_changelist"))])
    if doubts.idle:
        text = ngettext(
            "%(count)d rule has matched no request for 30 days:",
            "%(count)d rules have matched no request for 30 days:",
            len(doubts.idle),
        )
        yield Item("warning", text % {"count": len(doubts.idle)}, _named(doubts.idle, viewer))
    for check in doubts.checks:
        level = "bad" if check.level >= ERROR else "warning"
        yield Item(level, f"{check.msg} ({check.id})", hint=str(check.hint or ""))


def _link(viewer: Viewer, slug: str) -> tuple[str, str]:
    return viewer.rule(slug), viewer.rule_url(slug)


def _named(slugs: Sequence[str], viewer: Viewer) -> list[tuple[str, str]]:
    named = [_link(viewer, slug) for slug in slugs[:MAX_NAMED]]
    rest = len(slugs) - MAX_NAMED
    return [*named, (_("and %d more") % rest, viewer.url("rule_changelist"))] if rest > 0 else named


def _why(unknown: UnknownName) -> str:
    texts = {
        "view_name": _("No view is named “%(name)s”."),
        "route": _("No route is “%(name)s”."),
        "scope": _("No view has the scope “%(name)s”."),
    }
    text = texts[unknown.field] % {"name": unknown.name}
    return f"{text} {_('Did you mean “%(close)s”?') % {'close': unknown.close}}" if unknown.close else text
