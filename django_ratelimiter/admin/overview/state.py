"""The state of the limiter, and problems that need attention, each a line with a link to where it can be fixed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final, NamedTuple

from django.core.checks import ERROR
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.db import router
from django.dispatch import receiver
from django.utils import timezone
from django.utils.translation import get_language, ngettext, pgettext
from django.utils.translation import gettext as _

from ...backend import get_engine, server_in_words
from ...checks import messages_about
from ...conf import settings
from ...engine import breaker
from ...engine.base import Version
from ...engine.breaker import open_breakers
from ...exceptions import EngineUnavailable
from ...identity import untrusted
from ...identity.proxies import trusting
from ...inspection.counters import shared_counters
from ...inspection.references import everybody
from ...inspection.words import at_limit_in_words
from ...models import RuleSetVersion, UsageBucket, UsageEpisode
from ...rules import cache
from ...rules.formatting import moment_in_words, units, until_in_words
from ...rules.records import RuleRecord
from ...rules.routes import UnknownName, unknown_names
from ...rules.ruleset import RuleSet
from ...rules.stored import published, storage
from ...rules.stored.published import version_in_force
from ...usage.collector.alerts import BEHIND, REJECTING, Lag, lag
from ...usage.reports.totals import Figures, Freshness
from ...usage.times import Granularity, aware, floor, now, stored
from ..formatting import unknown_in_words
from ..viewer import Viewer

#: How often the engine is called: the first call of a process may have no connection yet, which is no error.
ATTEMPTS: Final = 2
#: Seconds between two attempts.
PAUSE: Final = 0.1

#: Seconds for which the overview tells that this process did not reach Redis.
OUTAGE_SECONDS: Final = 300.0


class Health(NamedTuple):
    """The reply of the engine, or why there was none.

    milliseconds: of the round trip; `None` = no reply. problem: why there was no reply. open_breakers: servers that
    this process does not call at present. versions: those in its shards, or its only one; `None` = a shard
    holds none; empty = no reply. unanswered: shards that did not answer. proxies: see `untrusted.found_lately`.
    """

    milliseconds: float | None
    problem: str
    open_breakers: int
    versions: Sequence[Version | None] = ()
    unanswered: int = 0
    proxies: Collection[str] = ()

    @property
    def is_degraded(self) -> bool:
        """Return whether this process decides by the failure policies, because it cannot reach the engine."""
        return self.milliseconds is None or self.open_breakers > 0


def read_health(*, in_detail: bool = False) -> Health:
    """Call the engine, and once more if there was no connection yet. Does not raise if the engine is out of reach.

    in_detail: also read the versions of all shards, and proxies.
    """
    problem = ""
    for attempt in range(ATTEMPTS):
        try:
            began = time.perf_counter()
            version = version_in_force(get_engine())
            health = Health(1_000 * (time.perf_counter() - began), "", open_breakers(), (version,))
            return _in_detail(health) if in_detail else health
        except EngineUnavailable as error:
            problem = str(error)
        except ImproperlyConfigured as error:
            problem = str(error)
            break
        if open_breakers() or attempt == ATTEMPTS - 1:
            break
        time.sleep(PAUSE)
    return Health(None, problem, open_breakers())


def _in_detail(health: Health) -> Health:
    engine: Any = get_engine()
    exact = getattr(engine, "engine", engine)
    try:
        if (shards := getattr(exact, "shards", 1)) > 1:
            versions = exact.versions()
            health = health._replace(versions=versions, unanswered=shards - len(versions))
        return health._replace(proxies=untrusted.found_lately())
    except EngineUnavailable as error:
        return health._replace(problem=str(error))


def outage_began(health: Health) -> datetime | None:
    """Return since when this process does not call a server; the latest of several. `None` = it calls all of them."""
    if not health.open_breakers or breaker.changed_at is None:
        return None
    return datetime.fromtimestamp(breaker.changed_at, UTC)


def had_outage_lately() -> bool:
    """Return whether a circuit breaker of this process has opened or closed in the last OUTAGE_SECONDS."""
    return breaker.changed_at is not None and time.time() - breaker.changed_at < OUTAGE_SECONDS


@lru_cache(maxsize=1)
def engine_in_words() -> str:
    """Return the server of the engine, without passwords; "" = none, each process counts in its own memory."""
    return server_in_words() if settings.ENGINE is not None or settings.CACHE_ALIAS is not None else ""


#: The summary that `switch_enforcement` writes into its version, and how that of a reset begins.
STOPPED, RESUMED, RESET = "enforcement stopped", "enforcement resumed", "counters reset"


class Status(NamedTuple):
    """The state of the limiter.

    state: "on", "stopped" by an operator, "disabled" by the settings, or "degraded": the failure policies decide.
    stopped: when and by whom; `None` = not stopped, or not known. latest: the version in the database; its number is
    0 if there is none. version: its author; `None` = not stored. older: the older versions in shards of the engine,
    with the number of shards. held: what the engine holds; without a reply, nothing is wrong.
    """

    state: str
    stopped: RuleSetVersion | None
    latest: Version
    version: RuleSetVersion | None
    older: Mapping[int, int]
    held: published.Held


def read_status(health: Health) -> Status:
    """Return the status from the primary database, with up to seven short queries."""
    enforced = cache.enforcement_enabled()
    committed = storage.committed_version()
    latest = storage.snapshots(committed).defer("snapshot").first()
    stopped = None if enforced else storage.snapshots().filter(summary=STOPPED).defer("snapshot").first()
    older = _older(health.versions, committed)
    state = _state(enforced, health)
    held = published.compared(health.versions[0]) if health.versions else published.Held.OURS
    return Status(state, stopped, committed, latest, older, held)


def _older(versions: Iterable[Version | None], than: Version) -> Mapping[int, int]:
    """Count the older versions, the oldest first. A shard without a version gets it with the next call."""
    found = Counter(each for each in versions if each is not None and each.order < than.order)
    return {version.number: times for version, times in sorted(found.items(), key=lambda item: item[0].order)}


def _state(enforced: bool, health: Health) -> str:
    if not settings.ENABLED:
        return "disabled"
    if not enforced:
        return "stopped"
    return "degraded" if health.is_degraded else "on"


#: Rules that matched no request for this time are listed.
IDLE: Final = timedelta(days=30)
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
        text % {"number": status.latest.number, "older": older},
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
    if fresh.collected_at is not None and fresh.collected_at >= now() - timedelta(minutes=3):  # the collector runs
        return None
    try:
        return lag()
    except EngineUnavailable:
        return None


def usage_items(
    hour: Figures, waiting: Lag | None, viewer: Viewer, *, is_known: bool, engine_answers: bool
) -> Iterator[Item]:
    """Yield problems of usage. waiting: the counts in Redis. is_known: it was collected at least once."""
    if hour.degraded:
        text = ngettext(
            "%(count)s request was decided without Redis in the last hour.",
            "%(count)s requests were decided without Redis in the last hour.",
            hour.degraded,
        )
        yield Item("warning", text % {"count": units(hour.degraded)})
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
        late = waiting.seconds if waiting.seconds > 300 else None
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
    shared = [each for each in rules.rules if each.mode == "enforce" and each.limits and each.is_shared]
    counters = shared_counters(shared, rules).counters if shared else ()
    blocked = {each.rule.slug: each for each in counters if each.blocked}
    return [(each.rule, each.blocked_until) for _slug, each in sorted(blocked.items())]


def rule_items(viewer: Viewer) -> Iterator[Item]:
    """Yield problems of rules and settings."""
    rules = cache.current_rules()  # compiled already, if this process has the latest
    if rules.version != storage.committed_version():
        rules = storage.load()
    faults = _faults_of(rules, get_language())
    for level, text, found in (
        ("bad", _("Not in force:"), faults.left_out),
        ("warning", _("Matches no request:"), faults.dead),
    ):
        for slug, hint in found[:MAX_NAMED]:
            yield Item(level, text, [(viewer.rule(slug), viewer.rule_url(slug))], hint)
        if more := len(found[MAX_NAMED:]):
            text = ngettext("%d more rule has the same problem:", "%d more rules have the same problem:", more) % more
            yield Item("warning", text, [(_("Rules"), viewer.url("rule_changelist"))])
    if idle := _idle(rules):
        text = ngettext(
            "%(count)d rule has matched no request for 30 days:",
            "%(count)d rules have matched no request for 30 days:",
            len(idle),
        )
        yield Item("warning", text % {"count": len(idle)}, _named(idle, viewer))
    yield from faults.messages


class Faults(NamedTuple):
    """What is wrong with rules and settings. left_out, dead: slugs of rules, each with the reason."""

    left_out: Sequence[tuple[str, str]]
    dead: Sequence[tuple[str, str]]
    messages: Sequence[Item]


@lru_cache(maxsize=4)
def _faults_of(rules: RuleSet, _language: str | None) -> Faults:
    """Return what is wrong. Neither a version of the rules nor the settings change while a process runs."""
    dead = [
        (rule.slug, unknown_in_words(each)) for rule in _active(rules) for each in unknown_names(rule) if _is_dead(each)
    ]
    # with texts of their own on the page: rules left out, usage not collected, unknown views, another database
    own = {f"django_ratelimiter.{number}" for number in ("W006", "W013", "W019", "W025")}
    checks = [check for check in messages_about(rules) if check.id not in own]
    messages = [
        Item("bad" if check.level >= ERROR else "warning", f"{check.msg} ({check.id})", hint=str(check.hint or ""))
        for check in checks
    ]
    return Faults([(slug, str(reason)) for slug, reason in rules.left_out], dead, messages)


@receiver(setting_changed)
def _forget_settings(**_signal: object) -> None:
    _faults_of.cache_clear()
    engine_in_words.cache_clear()


def _active(rules: RuleSet) -> list[RuleRecord]:
    return [rule for rule in rules.rules if rule.mode != "off"]


def _is_dead(found: UnknownName) -> bool:
    """Return whether such a rule matches nothing: but any code may name a scope that no view has."""
    return bool(found.close) or found.field != "scope"


def _idle(rules: RuleSet) -> list[str]:
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
    return [rule.slug for rule in _active(rules) if rule.slug in old and rule.slug not in met]


def _named(slugs: Sequence[str], viewer: Viewer) -> list[tuple[str, str]]:
    named = [(viewer.rule(slug), viewer.rule_url(slug)) for slug in slugs[:MAX_NAMED]]
    rest = len(slugs) - MAX_NAMED
    return [*named, (_("and %d more") % rest, viewer.url("rule_changelist"))] if rest > 0 else named
