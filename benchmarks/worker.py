"""A process that makes decisions on request: `python -m benchmarks.worker SHIFT SECONDS [NAME ...]`.

SHIFT: seconds by which its clock is wrong. SECONDS: the window. NAME: the contestants; none = all of them.
It prints which it has. Then it reads orders from standard input, one JSON object per line, and answers each with one.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final


def shift_clock(seconds: float) -> None:
    """Replace the clock of this process by one that is wrong."""
    # Partials, because a class that stores them would make methods of functions.
    time.time = partial(_later, time.time, seconds)
    time.time_ns = partial(_later, time.time_ns, int(seconds * 1e9))


def _later(clock: Callable[[], Any], by: float) -> Any:
    return clock() + by


SHIFT: Final = float(sys.argv[1]) if __name__ == "__main__" else 0.0
if SHIFT:
    shift_clock(SHIFT)  # before `time.time` is imported by name

from .contest import Contestant, timed  # noqa: E402
from .registry import MAKERS, made, reason  # noqa: E402


def obey(contestant: Contestant, order: dict[str, Any]) -> dict[str, Any]:
    """Make the calls of one order.

    at: `time.monotonic` of the start. calls: how many. callers: one for each call in turn, repeatedly. The answer has
    the CPU time of a call.
    """
    callers = [order["callers"][number % len(order["callers"])] for number in range(order["calls"])]
    while time.monotonic() < order["at"]:
        time.sleep(0.0005)
    spent = timed(contestant, callers, time.process_time)
    return {"admitted": spent.admitted, "us": spent.us}


def main() -> None:
    from .setting import Setting

    names = sys.argv[3:] or list(MAKERS)
    working, failed = made(Setting.of_environment(brief=False).url, names, int(sys.argv[2]))
    contestants = {each.name: each for each in working}
    print(json.dumps({"names": list(contestants), "failed": failed}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        try:
            answer = obey(contestants[order["name"]], order)
        except Exception as error:  # any error; the next order may be for another one
            answer = {"error": reason(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
