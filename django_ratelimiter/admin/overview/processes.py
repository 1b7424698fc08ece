"""The processes that have decided requests recently, as text."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

from django.utils.translation import gettext as _

from ...rules.formatting import units
from ...rules.heartbeats import HEARD_SECONDS, Heartbeat
from .health import Health
from .status import Status

#: Maximum number in the list.
MAX_LISTED: Final = 50


def processes_context(health: Health, status: Status, *, in_detail: bool) -> dict[str, Any]:
    """Return the number of processes; in detail, which of them are behind, and a list."""
    found = health.processes
    if not found:
        return {}
    if len(found) == 1:
        text = _("1, this one: no other has decided a request in the last %(minutes)d minutes")
    else:
        text = _("%(count)s: this one, and those that have decided a request in the last %(minutes)d minutes")
    count = {"count": text % {"count": units(len(found)), "minutes": round(HEARD_SECONDS / 60)}}
    if not in_detail:
        return count
    return {
        **count,
        "behind": _behind(status, len(found)),
        "rows": [_row(each, status, is_own=not place) for place, each in enumerate(found[:MAX_LISTED])],
        "more": max(len(found) - MAX_LISTED, 0),
    }


def _behind(status: Status, processes: int) -> Sequence[str]:
    """Return a sentence for each older version in a process."""
    text = _("%(some)s of %(all)s still have version %(number)d.")
    return [
        text % {"some": units(count), "all": units(processes), "number": older}
        for older, count in status.older_processes.items()
    ]


def _row(process: Heartbeat, status: Status, *, is_own: bool) -> dict[str, Any]:
    """Return a row of the list. is_older: it has not loaded the latest version. is_cut_off: a breaker of it is open."""
    seconds = max(round(time.time() - process.at), 0)
    return {
        "name": f"{process.host}:{process.pid}",
        "version": process.version.number,
        "heard": _("this process") if is_own else _("%d s ago") % seconds,
        "is_older": process.version.number in status.older_processes,
        "is_cut_off": process.open_breakers > 0,
    }
