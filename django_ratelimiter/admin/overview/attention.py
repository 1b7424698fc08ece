"""Problems that need attention, each a line with a link to where it can be fixed. A fixed number of queries."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from django.core.checks import ERROR
from django.db import router
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext, pgettext

from ...checks import messages_about
from ...exceptions import EngineUnavailable
from ...identity.proxies import trusting
from ...inspection.counters import shared_counters
from ...inspection.references import everybody
from ...inspection.words import at_limit_in_words
from ...models import UsageBucket, UsageEpisode
from ...rules import cache
from ...rules.formatting import moment_in_words, units, until_in_words
from ...rules.records import RuleRecord
from ...rules.routes import UnknownName, unknown_names
from ...rules.stored import storage
from ...usage.collector.alerts import BEHIND, REJECTING
from ...usage.collector.lag import Lag, lag
from ...usage.reports.totals import Freshness
from ...usage.times import Granularity, aware, floor, now, stored
from ..formatting import unknown_in_words
from ..viewer import Viewer
from .health import Health, Status, had_outage_lately
from .last_hour import LastHour

#: Rules that matched no request for this time are listed.
IDLE: Final = timedelta(days=30)
#: If counts were added within this time, the collector runs, and Redis is not asked for waiting batches.
FRESH: Final = timedelta(minutes=3)
#: Seconds after which waiting batches are late.
LATE: Final = 300.0
#: Maximum number of listed rules of one kind.
MAX_NAMED: Final = 5

#: Checks with their own text on the page: rules that are left out, usage not collected, unknown views.
OWN_CHECKS: Final = {"django_ratelimiter.W006", "django_ratelimiter.W013", "django_ratelimiter.W019"}


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


def read_waiting(fresh: Freshness) -> Lag | None:
    """Return the counts that wait in Redis, which is asked only if none were added for a while; `None` = not known."""
    if fresh.collected_at is not None and fresh.collected_at >= now() - FRESH:
        return None
    try:
        return lag()
    except EngineUnavailable:
        return None


def usage_items(
    hour: LastHour, waiting: Lag | None, viewer: Viewer, *, is_known: bool, engine_answers: bool
) -> Iterator[Item]:
    """Yield problems of usage. waiting: the counts in Redis. is_known: it was collected at least once."""
    if hour.figures.degraded:
        text = ngettext(
            "%(count)s request was decided without Redis in the last hour.",
            "%(count)s requests were decided without Redis in the last hour.",
            hour.figures.degraded,
        )
        yield Item("warning", text % {"count": units(hour.figures.degraded)})
    for rule, until in _exhausted() if engine_answers else ():
        page = viewer.digest_url(everybody(), rule=rule.slug) or viewer.rule_url(rule.slug)
        hint = until and _("Until %(until)s.") % {"until": until_in_words(until)}
        text = _("%(what)s, by the rule:") % {"what": at_limit_in_words(rule)}
        yield Item("bad", text, [(viewer.rule(rule.slug), page)], hint or "")
    began = dict(UsageEpisode.objects.using(router.db_for_write(UsageBucket)).values_list("name", "began_at"))
    for name in sorted(name for name in began if name.startswith(REJECTING)):
        slug = name.removeprefix(REJECTING)
        text = _("A rule rejects unusually many requests since %s:") % moment_in_words(aware(began[name]))
        yield Item("warning", text, [(viewer.rule(slug), viewer.report_url(slug))])
    late = (now() - aware(began[BEHIND])).total_seconds() if BEHIND in began else None
    if waiting is not None:
        late = waiting.seconds if waiting.seconds > LATE else None
    if not is_known:
        hint = _(
            "Run manage.py ratelimit collect now, and from then on each minute: by cron, or as a task of Celery or "
            "Django. If it runs already, no request had matched a rule when it last ran."
        )
        if waiting and waiting.batches:
            hint = _(
                "Requests have been counted, and wait in Redis. Run manage.py ratelimit collect now, and from "
                "then on each minute: by cron, or as a task of Celery or Django."
            )
        yield Item("warning", _("Nothing has been collected yet, so there are no figures."), hint=hint)
    elif late is not None:
        minutes = max(round(late / 60), 1)
        text = ngettext(
            "Counts have been waiting in Redis for %(count)s minute. They are collected by the task "
            "django_ratelimiter.collect_usage or by manage.py ratelimit collect.",
            "Counts have been waiting in Redis for %(count)s minutes. They are collected by the task "
            "django_ratelimiter.collect_usage or by manage.py ratelimit collect.",
            minutes,
        )
        yield Item("warning", text % {"count": units(minutes)})


def _exhausted() -> list[tuple[RuleRecord, datetime | None]]:
    """Return the rules whose counter all callers share and is used up, and until when; `None` = for ever."""
    rules = cache.latest_rules()
    shared = [each for each in rules.rules if each.mode == "enforce" and each.is_shared]
    counters = shared_counters(shared, rules).counters if shared else ()
    blocked = {each.rule.slug: each for each in counters if each.blocked}
    return [(each.rule, each.blocked_until) for _slug, each in sorted(blocked.items())]


def rule_items(viewer: Viewer) -> Iterator[Item]:
    """Yield problems of rules and settings."""
    rules = cache.current_rules()  # compiled already, if this process has the latest
    if rules.version != storage.committed_version():
        rules = storage.load()
    active = [rule for rule in rules.rules if rule.mode != "off"]
    dead = [(rule.slug, unknown_in_words(each)) for rule in active for each in unknown_names(rule) if _is_dead(each)]
    for level, text, found in (
        ("bad", _("Not in force:"), [(slug, str(reason)) for slug, reason in rules.left_out]),
        ("warning", _("Matches no request:"), dead),
    ):
        for slug, hint in found[:MAX_NAMED]:
            yield Item(level, text, [_link(viewer, slug)], hint)
        if more := len(found[MAX_NAMED:]):
            text = ngettext("%d more rule has the same problem:", "%d more rules have the same problem:", more) % more
            yield Item("warning", text, [(_("Rules"), viewer.url("rule_changelist"))])
    if idle := _idle(active):
        text = ngettext(
            "%(count)d rule has matched no request for 30 days:",
            "%(count)d rules have matched no request for 30 days:",
            len(idle),
        )
        yield Item("warning", text % {"count": len(idle)}, _named(idle, viewer))
    for check in (each for each in messages_about(rules) if each.id not in OWN_CHECKS):
        level = "bad" if check.level >= ERROR else "warning"
        yield Item(level, f"{check.msg} ({check.id})", hint=str(check.hint or ""))


def _is_dead(found: UnknownName) -> bool:
    """Return whether such a rule matches nothing: but any code may name a scope that no view has."""
    return bool(found.close) or found.field != "scope"


def _idle(rules: Collection[RuleRecord]) -> list[str]:
    """Return the rules that were in use IDLE ago, still are, and have matched nothing since. Three queries.

    Empty if usage was not yet counted then.
    """
    since = now() - IDLE
    start = floor(since, Granularity.DAY, timezone.get_default_timezone())
    days = UsageBucket.objects.order_by().filter(granularity=Granularity.DAY)
    if not days.filter(start__lte=stored(start)).exists():
        return []
    before = storage.snapshots().filter(created_at__lte=stored(since)).values_list("snapshot", flat=True).first()
    old = {rule["slug"] for rule in (before or {}).get("rules", ()) if rule.get("mode") != "off"}
    met = set(days.filter(start__gte=stored(start)).values_list("rule_slug", flat=True).distinct())
    return [rule.slug for rule in rules if rule.slug in old and rule.slug not in met]


def _link(viewer: Viewer, slug: str) -> tuple[str, str]:
    return viewer.rule(slug), viewer.rule_url(slug)


def _named(slugs: Sequence[str], viewer: Viewer) -> list[tuple[str, str]]:
    named = [_link(viewer, slug) for slug in slugs[:MAX_NAMED]]
    rest = len(slugs) - MAX_NAMED
    return [*named, (_("and %d more") % rest, viewer.url("rule_changelist"))] if rest > 0 else named
