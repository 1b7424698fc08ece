"""One run of the collector: what the tasks and the command do each minute."""

from __future__ import annotations

from .alerts import Thresholds, send_alerts
from .collect import Collected, Progress, collect
from .lag import lag
from .prune import prune


def run(thresholds: Thresholds, progress: Progress = lambda done, waiting: None) -> tuple[Collected, int]:
    """Collect all closed minutes, send alerts, and delete rows that are older than RETENTION.

    Return what was collected, and how many rows were deleted. Raises as `collect` does.
    """
    lag_before = lag()
    collected = collect(progress)
    send_alerts(lag_before, thresholds)
    return collected, prune()
