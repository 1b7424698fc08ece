"""One run of the collector: what the tasks and the command do each minute."""

from __future__ import annotations

from ...exceptions import WrongRedis
from ...rules import cache
from ...rules.stored import epochs
from .alerts import Thresholds, send_alerts
from .collect import Collected, Progress, collect
from .lag import lag
from .prune import prune


def run(thresholds: Thresholds, progress: Progress = lambda done, waiting: None) -> tuple[Collected, int]:
    """Collect all closed minutes, send alerts, and delete rows that are older than RETENTION.

    Return what was collected, and how many rows were deleted. Raises as `collect` does. Raises WrongRedis before
    anything is read if the engine holds another database's rules, and at the end if it held none, as after a flush.
    """
    held = epochs.held()
    if held not in (epochs.Held.OURS, epochs.Held.NONE):
        raise WrongRedis(held.problem)
    lag_before = lag()
    collected = collect(progress)
    send_alerts(lag_before, thresholds)
    deleted = prune()
    if held is epochs.Held.NONE:
        done = "" if cache.last_publish_failed() else " It holds the latest version now."
        raise WrongRedis(f"{held.problem}{done}")
    return collected, deleted
