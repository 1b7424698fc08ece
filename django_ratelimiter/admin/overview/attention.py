"""Problems that need attention, as data; the page makes texts of it. A fixed number of queries, none per rule."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from django.core.checks import CheckMessage
from django.db import router
from django.utils import timezone

from ...checks import messages_about
from ...exceptions import EngineUnavailable
from ...inspection.counters import shared_counters
from ...models import UsageBucket, UsageEpisode
from ...rules import cache
from ...rules.records import RejectedRule, RuleRecord
from ...rules.routes import UnknownName, unknown_names
from ...rules.stored import storage
from ...usage.collector.alerts import BEHIND, REJECTING
from ...usage.collector.lag import Lag, lag
from ...usage.reports.totals import Freshness
from ...usage.times import Granularity, aware, floor, now, stored

#: Rules that matched no request for this time are listed.
IDLE: Final = timedelta(days=30)
#: If counts were added within this time, the collector runs, and Redis is not asked for waiting batches.
FRESH: Final = timedelta(minutes=3)
#: Seconds after which waiting batches are late.
LATE: Final = 300.0

#: Checks with their own text on the page: rules that are left out, usage not collected, unknown views.
OWN_CHECKS: Final = {"django_ratelimiter.W006", "django_ratelimiter.W013", "django_ratelimiter.W019"}


class RuleDoubts(NamedTuple):
    """Problems of rules, by their slugs.

    dead: rules that match no request, because no view has the name in them. idle: rules that matched no request for
    IDLE.
    """

    left_out: list[RejectedRule]
    dead: list[tuple[str, UnknownName]]
    idle: list[str]
    checks: list[CheckMessage]


class UsageDoubts(NamedTuple):
    """Problems of usage.

    late_seconds: how long counts have waited to be collected; `None` = not late. rejecting: slugs of rules that
    reject an unusual share of their requests, and since when. is_idle: no counts were added for a while, and none
    wait. waiting: the minutes whose counts wait, if Redis was asked.
    exhausted: rules with a used-up counter that all callers share, and until when they reject; `None` = for ever.
    """

    late_seconds: float | None
    rejecting: list[tuple[str, datetime]]
    is_idle: bool = False
    exhausted: Sequence[tuple[RuleRecord, datetime | None]] = ()
    waiting: int = 0


def read_rule_doubts() -> RuleDoubts:
    """Return problems of the current rules."""
    rules = cache.current_rules()  # compiled already, if this process has the latest
    if rules.version != storage.committed_version():
        rules = storage.load()
    active = [rule for rule in rules.rules if rule.mode != "off"]
    dead = [(rule.slug, each) for rule in active for each in unknown_names(rule) if _is_dead(each)]
    checks = [each for each in messages_about(rules) if each.id not in OWN_CHECKS]
    return RuleDoubts(list(rules.left_out), dead, _idle(active), checks)


def read_usage_doubts(fresh: Freshness, *, engine_answers: bool) -> UsageDoubts:
    """Return the lasting alerts; ask the engine for waiting batches only if no counts were added for a while."""
    began = dict(UsageEpisode.objects.using(router.db_for_write(UsageBucket)).values_list("name", "began_at"))
    rejecting = [
        (name.removeprefix(REJECTING), aware(at)) for name, at in sorted(began.items()) if name.startswith(REJECTING)
    ]
    late, is_idle, waiting = (now() - aware(began[BEHIND])).total_seconds() if BEHIND in began else None, False, None
    if engine_answers and (fresh.collected_at is None or fresh.collected_at < now() - FRESH):
        waiting = _waiting()
        late = waiting.seconds if waiting and waiting.seconds > LATE else None
        is_idle = waiting is not None and not waiting.batches and fresh.collected_at is not None
    exhausted = _exhausted() if engine_answers else ()
    return UsageDoubts(late, rejecting, is_idle, exhausted, waiting.batches if waiting else 0)


def _waiting() -> Lag | None:
    try:
        return lag()
    except EngineUnavailable:
        return None


def _exhausted() -> list[tuple[RuleRecord, datetime | None]]:
    rules = cache.latest_rules()
    shared = [each for each in rules.rules if each.mode == "enforce" and each.is_shared]
    counters = shared_counters(shared, rules).counters if shared else ()
    blocked = {each.rule.slug: each for each in counters if each.blocked}
    return [(each.rule, each.blocked_until) for _slug, each in sorted(blocked.items())]


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
