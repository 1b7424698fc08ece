"""The state of enforcement, and the version of the rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import NamedTuple

from django.db.models import QuerySet

from ...conf import settings
from ...engine.base import Version
from ...models import RuleSetVersion
from ...rules import cache
from ...rules.stored import epochs, storage
from ...usage.times import aware
from .health import Health

#: The summary that `switch_enforcement` writes into its version.
STOPPED, RESUMED = "enforcement stopped", "enforcement resumed"


class Status(NamedTuple):
    """The state of the limiter.

    state: "on", "stopped" by an operator, "disabled" by the settings, or "degraded": the failure policies decide.
    stopped: when and by whom; `None` = not stopped, or not known. resumed: the same for the end of the last stop;
    `None` = there was none, or enforcement is stopped. oldest: when the oldest stored version was saved, if no stored
    version has stopped or resumed enforcement. number: of the latest version in the database; 0 = there is none.
    version: its author; `None` = not stored. older: the older versions in shards of the engine,
    with the number of shards. held: what the engine holds; without a reply, nothing is wrong.
    """

    state: str
    stopped: RuleSetVersion | None
    resumed: RuleSetVersion | None
    oldest: datetime | None
    number: int
    version: RuleSetVersion | None
    older: Mapping[int, int]
    held: epochs.Held


def read_status(health: Health) -> Status:
    """Return the status from the primary database, with up to seven short queries."""
    enforced = cache.enforcement_enabled()
    committed = storage.committed_version()
    latest = _first(storage.snapshots(committed))
    switched = _first(storage.snapshots().filter(summary=RESUMED if enforced else STOPPED))
    stopped, resumed = (None, switched) if enforced else (switched, None)
    oldest = None if switched else storage.snapshots().values_list("created_at", flat=True).last()
    older = _older(health.versions, committed)
    state = _state(enforced, health)
    held = epochs.compared(health.versions[0]) if health.versions else epochs.Held.OURS
    oldest = oldest and aware(oldest)
    return Status(state, stopped, resumed, oldest, committed.number, latest, older, held)


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


def _first(versions: QuerySet[RuleSetVersion]) -> RuleSetVersion | None:
    """Return the first of these versions, without its snapshot."""
    return versions.defer("snapshot").first()
