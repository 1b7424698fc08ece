"""Rules for the duration of a test, counted in memory, the clock that they count by, and deleting counts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from math import ceil
from typing import Any, Final
from unittest.mock import patch

from django.test.utils import TestContextDecorator, override_settings

from .. import backend, identity
from ..conf import django_setting
from ..engine.base import Charge, Verdict, Version
from ..engine.limits import OPTIONS, Limit
from ..engine.memory import MemoryEngine
from ..engine.redis import RedisEngine
from ..engine.redis.connections.faults import is_refused
from ..exceptions import EngineUnavailable
from ..limiter import events, fallback, io, slots
from ..rules import cache
from ..rules.records import RuleRecord, TierRecord
from ..rules.ruleset import NO_VERSION, RuleSet, rule_from
from ..rules.stored import storage, versions
from ..rules.stored.compiler import columns_of
from ..rules.stored.history.changes import normal_rule
from ..rules.stored.tables import models
from ..rules.tiers import Entitlement
from ..signals import rules_committed
from ..values.access import NOBODY

#: A record, or the fields of a rule, see `override_rules`.
RuleSpec = RuleRecord | Mapping[str, Any]

#: The default start time: a Thursday, and the first day of a month and a year.
START: Final = datetime(2026, 1, 1, tzinfo=UTC)

#: If there is no tier, the tiers of callers are not looked up, and responses do not vary by cookie.
_SOME_TIER: Final = TierRecord("some", "some", 0, "none")


#: The keys that stay when counts are deleted: they contain the version of the rules, and no counts.
_PRESERVED: Final = (b"version", b"shards")


class FrozenClock:
    """A clock that moves only when a test moves it, or when the limiter would sleep.

    at: the start time, aware of its time zone. slept: a list of the seconds that requests were delayed, the latest
    last.
    """

    def __init__(self, at: datetime = START) -> None:
        self.slept: list[float] = []
        self.move_to(at)

    def __call__(self) -> int:
        """Return the time in microseconds since the Unix epoch, for engines."""
        return self._now_us

    @property
    def now(self) -> datetime:
        """Return the time, in UTC."""
        return datetime.fromtimestamp(self._now_us // 1_000_000, UTC).replace(microsecond=self._now_us % 1_000_000)

    def advance(self, seconds: float) -> None:
        """Move the clock forward by this time or a little more, to a whole microsecond."""
        if seconds < 0:
            raise ValueError(f"seconds: must not be negative, so not {seconds!r}.")
        self._now_us += ceil(Decimal(str(seconds)) * 1_000_000)

    def move_to(self, at: datetime) -> None:
        """Set the clock to this time, which must be aware of its time zone."""
        if at.tzinfo is None:
            raise ValueError(f"at: {at!r} names no time zone.")
        since = at - datetime(1970, 1, 1, tzinfo=UTC)
        self._now_us = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds

    def sleep(self, seconds: float) -> None:
        """Advance the clock instead of sleeping, and record the seconds."""
        self.slept.append(seconds)
        self.advance(seconds)

    async def asleep(self, seconds: float) -> None:
        """Like `sleep`, for coroutines."""
        self.sleep(seconds)


class RulesInForce:
    """The rules of a test. Calling it replaces them; usage so far is kept.

    clock: the clock of all limits. engine: the engine that counts. tier: the slug of the tier of every caller;
    `None` = no tier. It can be set at any time.
    """

    def __init__(self, clock: FrozenClock, tier: str | None = None) -> None:
        self.clock = clock
        self.engine: _EngineWithoutVersions = _EngineWithoutVersions(clock)
        self._tier = tier
        self._records: list[RuleRecord] = []

    def __call__(self, *rules: RuleSpec) -> None:
        """Replace the rules by these. Raises ValueError for one that cannot be enforced."""
        self._records = [build_record(rule) for rule in rules]
        self.tier = self._tier

    @property
    def tier(self) -> str | None:
        return self._tier

    @tier.setter
    def tier(self, slug: str | None) -> None:
        self._tier = slug
        cache._state = cache._State()  # loaded again at the next use

    def rule_set(self) -> RuleSet:
        """Return the current rules. There is a tier if the caller has one, or if a rule names one."""
        has_tiers = self.tier is not None or any({*each.limits} - {None} for each in self._records)
        return RuleSet(NO_VERSION, (_SOME_TIER,) * has_tiers, self._records)  # without a version, no signal is sent

    def entitlement(self, *_caller: object, **_more: object) -> Entitlement:
        """Return the entitlement of any caller."""
        return Entitlement(None if self.tier is None else TierRecord(self.tier, self.tier, 0, "none"))


class override_rules(TestContextDecorator):
    """Apply these rules, and no others, in a `with` block, a test function, or a whole TestCase.

    rules: records, or dicts of the fields of `Rule`. Only `slug` and `limits` are required; a path is a prefix
    unless `path_kind` is set. `limits` is a list of rates such as "10/minute", of `Limit`s, and of dicts of
    the fields of `RuleLimit`, where "rate" can replace quota and window_seconds; or a dict of such lists by
    tier slug, `None` = every other tier, where "unlimited" can replace a list.
    tier: the tier of every caller. api_keys: the known keys, as callers send them. clock: `None` = a
    frozen clock that starts at START.

    Counts in memory, by that clock, whatever the settings are. Neither Redis nor the database is used. Raises
    ValueError for a rule that cannot be enforced.
    """

    def __init__(
        self,
        *rules: RuleSpec,
        tier: str | None = None,
        api_keys: Collection[str] = (),
        clock: FrozenClock | None = None,
        attr_name: str | None = None,
        kwarg_name: str | None = None,
    ) -> None:
        super().__init__(attr_name, kwarg_name)
        self._rules, self._tier, self._clock = rules, tier, clock
        self._api_keys = {identity.hash_api_key(key) for key in api_keys}
        self._undo: list[ExitStack] = []

    def __enter__(self) -> RulesInForce:  # type: ignore[override]  # the stubs know Django's own decorators only
        return self.enable()

    def enable(self) -> RulesInForce:
        in_force = RulesInForce(self._clock or FrozenClock(), self._tier)
        with ExitStack() as stack:
            stack.enter_context(_reloading_saved_rules())
            written = {**django_setting("RATELIMITER", {}), "ENABLED": True, "API_KEY_RESOLVER": None}
            stack.enter_context(override_settings(RATELIMITER=written))  # a change of the settings resets the engine
            for owner, name, stand_in in (
                (backend, "_build", lambda: in_force.engine),
                (cache, "_state", cache._State()),
                (cache, "access_list", lambda: NOBODY),
                (cache, "enforcement_enabled", lambda: True),
                (cache, "entitlement_for", in_force.entitlement),
                (storage, "load", in_force.rule_set),
                (versions, "uncommitted_rules", lambda: None),
                (identity, "is_known_api_key", lambda hashed, _address: hashed in self._api_keys),
                (events, "_soft_exceeded", events.NotificationDedup()),
                (events, "_reached", events.NotificationDedup()),
                (io, "sleep", in_force.clock.sleep),
                (io, "asleep", in_force.clock.asleep),
                (slots, "_clock", lambda: in_force.clock() / 1_000_000),
            ):
                stack.enter_context(patch.object(owner, name, stand_in))
            in_force(*self._rules)
            self._undo.append(stack.pop_all())
        return in_force

    def disable(self) -> None:
        self._undo.pop().close()


@contextmanager
def _reloading_saved_rules() -> Iterator[None]:
    """Reload the rules of the database at the end if they were changed meanwhile: they were not published."""
    saved: list[Any] = []

    def note(version: Any, **_signal: Any) -> None:
        saved.append(version)

    rules_committed.connect(note)
    try:
        yield
    finally:
        rules_committed.disconnect(note)
        if saved:
            cache._mark_outdated()


class _EngineWithoutVersions(MemoryEngine):
    """Accepts any version: rules that the test saves are not used, and make nothing stale."""

    def check(
        self, charges: Iterable[Charge], *, version: int | Version | None = None, **options: Any
    ) -> Sequence[Verdict]:
        return super().check(charges, **options)


def build_record(rule: RuleSpec) -> RuleRecord:
    """Return the record of a rule in short notation. Raises ValueError if it cannot be enforced."""
    return rule if isinstance(rule, RuleRecord) else _record(**rule)


def _record(**fields: Any) -> RuleRecord:
    """Return a rule in short notation, read like one of a snapshot: enforced, and otherwise as in a new row."""
    _check_names("rule", fields, ["limits", *(field.name for field in columns_of(models.Rule))])
    if missing := {"slug", "limits"} - fields.keys():
        raise ValueError(f"A rule needs {' and '.join(sorted(missing))}.")
    kind = {"path_kind": "prefix"} if fields.get("path") else {}
    limits = fields["limits"] if isinstance(fields["limits"], Mapping) else {None: fields["limits"]}
    entries = [entry for tier, several in limits.items() for entry in _entries(tier, several)]
    # Tests usually check that a limit rejects.
    return rule_from(normal_rule({"mode": "enforce", "name": fields["slug"], **kind, **fields, "limits": entries}))


def _entries(tier: str | None, several: Any) -> Iterable[dict[str, Any]]:
    if several == "unlimited":
        yield {"tier": tier, "unlimited": True}
        return
    if isinstance(several, str):
        raise ValueError(f'limits: must be a list of limits, or "unlimited", not {several!r}.')
    for one in several:
        yield {"tier": tier, **_entry(one)}


def _entry(one: Any) -> dict[str, Any]:
    """Return one limit in the format of a snapshot, without columns that have their default."""
    if isinstance(one, Limit):
        options = {name: getattr(one, name) for name in OPTIONS}
        window = None if one.window is None else str(one.window)
        return {**options, "algorithm": one.algorithm, "quota": one.quota, "window_seconds": window}
    if isinstance(one, str):
        one = {"rate": one}
    _check_names("limit", one, ["rate", "tier", *(field.name for field in columns_of(models.RuleLimit))])
    given = {name: value for name, value in one.items() if name != "rate"}
    if "rate" in one:
        rate = Limit.parse(one["rate"])
        given |= {"quota": rate.quota, "window_seconds": rate.window}
    if given.get("window_seconds") is not None:
        given["window_seconds"] = str(given["window_seconds"])
    return given


def _check_names(what: str, given: Mapping[str, Any], known: Sequence[str]) -> None:
    if unknown := given.keys() - {*known}:
        raise ValueError(f"A {what} has no {', '.join(sorted(unknown))}; it has {', '.join(sorted(known))}.")


def clear_counts() -> None:
    """Delete all counters, and all usage that has not been collected. Only for tests.

    This clears the memory of this process. On Redis, it finds and deletes every key of this test database, in the
    database of CACHE_ALIAS, except the version of the rules. If the user of Redis may not run SCAN, this process
    counts under new names from now on. Raises EngineUnavailable if Redis does not answer. Counts of your own ENGINE are
    not changed.
    """
    engine: Any = backend.get_engine()
    exact = getattr(engine, "engine", engine)
    if isinstance(exact, MemoryEngine):
        exact.clear()
    elif isinstance(exact, RedisEngine):
        try:
            for shard in range(exact.shards):
                exact.commands.run(shard, partial(_delete, exact.prefix(shard)))
        except EngineUnavailable as error:
            if not (isinstance(error.__cause__, Exception) and is_refused(error.__cause__)):
                raise
            backend.begin_namespace()
        backend.reset_engine()  # with what this process has in hand
    fallback.local.clear()
    backend.usage_buffer._forget()


def _delete(prefix: str, client: Any) -> None:
    keys: list[Any] = [name.encode() if isinstance(name, str) else name for name in client.scan_iter(f"{prefix}*")]
    for name in keys:
        if name.removeprefix(prefix.encode()) not in _PRESERVED:
            client.delete(name)
