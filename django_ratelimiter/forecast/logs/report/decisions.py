"""Each decision of a replay as a line of JSON, to compare it with what happened or with another tool."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from ....decision import Decision
from ..line import AccessLogLine
from ..replay import Replay


def decision_writer(write: Callable[[str], object]) -> Callable[[AccessLogLine, Sequence[Replay]], None]:
    """Return a function that writes the decision on a line by the last of the rule sets."""

    def note(line: AccessLogLine, replays: Sequence[Replay]) -> None:
        data = {"file": line.file, "line": line.number, "time_us": line.time_us, **_decided(replays[-1].decision)}
        write(json.dumps(data) + "\n")

    return note


def _decided(decision: Decision) -> dict[str, Any]:
    """Return the content of a decision, as in response fields, and of each limit."""
    binding = decision.binding if decision.access is None else None
    return {
        "allowed": decision.allowed,
        "retry_after": decision.retry_after,
        "remaining": binding.verdict.remaining if binding and binding.verdict else None,
        "binding": binding.rule.slug if binding else None,
        "access": decision.access.action if decision.access else None,
        "limits": [
            {
                "rule": each.rule.slug,
                "tier": each.tier.slug if each.tier else None,
                "mode": each.mode,
                "allowed": each.verdict.allowed,
                "remaining": each.verdict.remaining,
                "retry_after": each.verdict.retry_after,
                "reset_after": each.verdict.reset_after,
                "delay": each.verdict.delay,
            }
            for each in decision.results
            if each.verdict is not None
        ],
    }
