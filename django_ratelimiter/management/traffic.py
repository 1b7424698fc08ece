"""The effect of a plan on traffic: a forecast from access logs, and how much of it is too much."""

from __future__ import annotations

import re
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from django.utils import timezone
from django.utils.translation import gettext as _

from ..forecast.comparison import Comparison, Options, compare
from ..forecast.logs.reading import LogFiles
from ..forecast.report.text import lines_of
from ..rules.files.planning import FilePlan
from ..rules.ruleset import RuleSet

_PERCENT: Final = re.compile(r"(\d+(?:\.\d+)?)\s*%?")


@dataclass(frozen=True)
class TrafficForecast:
    """What a plan would do to the traffic of a log."""

    found: Comparison

    def in_lines(self) -> Iterator[str]:
        """Yield the forecast for people."""
        yield from lines_of(self.found, None)

    def excess(self, most_callers: float | None, most_requests: float | None) -> Sequence[str]:
        """Return in words what goes beyond these shares, from 0 to 1; `None` = any share will do."""
        difference = self.found.difference
        checked = (
            (most_callers, difference.share_of_callers, _("%(found)s of the callers, more than %(most)s.")),
            (most_requests, difference.share_of_requests, _("%(found)s of the requests, more than %(most)s.")),
        )
        return [
            text % {"found": f"{100 * share:.3g} %", "most": f"{100 * most:g} %"}
            for most, share, text in checked
            if most is not None and share > most
        ]


def add_traffic(command: ArgumentParser) -> None:
    """Add the arguments for a forecast to `plan`."""
    log = "Say what the change would have done to the requests of this access log. May be repeated."
    command.add_argument("--traffic", action="append", default=[], metavar="LOG", help=log)
    command.add_argument("--traffic-format", default="auto", metavar="FORMAT", help="As --format of `replay`.")
    for name, what in (("", "callers"), ("-requests", "requests")):
        text = f"Fail if more than this share of the {what} would be newly rejected, such as 0.1%%."
        command.add_argument(f"--max-newly-refused{name}", type=_share, metavar="PERCENT", help=text)


def forecast(plan: FilePlan, logs: Sequence[str], log_format: str) -> TrafficForecast:
    """Replay logs by the rules as they are and as they would be. Raises WrongFormat, OSError."""
    before, after = (RuleSet.from_snapshot(each) for each in (plan.now, plan.planned))
    with LogFiles(list(logs), log_format, (), timezone.get_current_timezone()) as files:
        return TrafficForecast(compare(files, before, after, Options()))


def _share(text: str) -> float:
    match = _PERCENT.fullmatch(text.strip())
    if match is None:
        raise ArgumentTypeError(f"{text!r} is no share; write 0.1%")
    return float(match[1]) / 100
