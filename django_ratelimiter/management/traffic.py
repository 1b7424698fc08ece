"""The effect of a plan on traffic: a forecast from access logs or samples, and whether it exceeds a maximum."""

from __future__ import annotations

import re
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from django.utils.translation import gettext as _

from ..forecast.logs.comparison import Options, ReplayReport, compare
from ..forecast.logs.console import WrongOption, add_reading, open_logs
from ..forecast.logs.report.data import json_of
from ..forecast.logs.report.text import lines_of
from ..forecast.samples import words
from ..forecast.samples.answer import answer
from ..forecast.samples.doubts import doubts, is_of_others, tiers_in_words
from ..forecast.samples.forecast import Forecast
from ..forecast.samples.periods import WEEK, read_period
from ..rules.files.planning import FilePlan
from ..rules.records import RuleRecord
from ..rules.ruleset import RuleSet
from ..rules.stored.history.snapshots import pairs
from ..values.terminal import Table

#: The argument that selects the recorded samples instead of a log.
SAMPLES: Final = "samples"

_PERCENT: Final = re.compile(r"(\d+(?:\.\d+)?)\s*%?")


@dataclass(frozen=True)
class TrafficForecast:
    """The effect of a plan on the traffic of a log.

    changed: the slugs of enforced rules that it adds or changes.
    """

    report: ReplayReport
    changed: frozenset[str]

    def in_lines(self) -> Iterator[str | Table]:
        """Yield the forecast for people."""
        yield from lines_of(self.report)

    def data(self) -> dict[str, Any]:
        """Return the forecast for programs."""
        return json_of(self.report)

    def unknown(self) -> Iterator[str]:
        """Yield what the replay could not see: lines, and what they lack for the changed rules."""
        report = self.report
        if not report.decided:
            yield _("The log has no request that rules can apply to, so it is not known whom the change would reject.")
        yield from (str(each) for each in [*report.left_out, *report.unseen] if each.rule in self.changed)
        yield from report.files.blind()

    def excess(self, most_callers: float | None, most_requests: float | None) -> Sequence[str]:
        """Return, as text, what exceeds these shares, from 0 to 1; `None` = no maximum."""
        changes = self.report.changes
        checked = (
            (most_callers, changes.share_of_callers, _("%(found)s of the callers, more than %(most)s.")),
            (most_requests, changes.share_of_requests, _("%(found)s of the requests, more than %(most)s.")),
        )
        return [
            text % {"found": _percent(share), "most": _percent(most)}
            for most, share, text in checked
            if most is not None and share > most
        ]


@dataclass(frozen=True)
class SamplesForecast:
    """What a plan would have rejected in a recorded period, by each enforced rule that it adds or changes.

    name: of the period. rules: their forecasts by slug.
    """

    name: str
    rules: Mapping[str, Forecast]

    def in_lines(self) -> Iterator[str]:
        """Yield the forecast for people."""
        yield _("From recorded samples, %(period)s:") % {"period": self.name}
        if not self.rules:
            yield f"  {_('No enforced rule changes, so nobody is newly rejected.')}"
        for slug, found in self.rules.items():
            if not found.sampled:
                yield f"  {_unknown(slug)}"
                continue
            yield f"  {slug}: {answer(found)}"
            text = _("Newly rejected: %(callers)s of the callers and %(requests)s of the requests.")
            shares = words.share(found.share_of_callers), words.share(found.share_of_requests)
            yield f"    {text % {'callers': shares[0], 'requests': shares[1]}}"
            for doubt in doubts(found):
                yield f"    {doubt}"

    def data(self) -> dict[str, Any]:
        """Return the forecast for programs. Shares are from 0 to 1; `None` = nothing is recorded."""
        shares = {
            slug: {
                "answer": answer(each),
                "share_of_callers": each.share_of_callers._asdict() if each.sampled else None,
                "share_of_requests": each.share_of_requests._asdict() if each.sampled else None,
            }
            for slug, each in self.rules.items()
        }
        return {"period": self.name, "rules": shares}

    def unknown(self) -> Iterator[str]:
        """Yield what the samples do not show."""
        yield from (text for slug, each in self.rules.items() if (text := _untold(slug, each)))

    def excess(self, most_callers: float | None, most_requests: float | None) -> Sequence[str]:
        """Return, as text, what exceeds these shares by the best estimate; see TrafficForecast."""
        found = []
        for slug, each in self.rules.items():
            callers, requests = most_callers, most_requests
            if each.is_shared:  # callers are all or none rejected, so only requests are compared
                callers, requests = None, most_callers if most_requests is None else most_requests
            for most, share, text in (
                (callers, each.share_of_callers, _("%(rule)s: %(found)s of the callers, more than %(most)s.")),
                (requests, each.share_of_requests, _("%(rule)s: %(found)s of the requests, more than %(most)s.")),
            ):
                if each.sampled and most is not None and share.about > most:
                    found.append(text % {"rule": slug, "found": _percent(share.about), "most": _percent(most)})
        return found


def add_traffic(command: ArgumentParser) -> None:
    """Add the arguments for a forecast to `plan`."""
    log = "Show what the change would have done to the requests of this access log (may be repeated), or `samples`."
    command.add_argument("--traffic", action="append", default=[], metavar="LOG", help=log)
    command.add_argument("--traffic-format", default="auto", metavar="FORMAT", help="Like --format of `replay`.")
    period = "With `--traffic samples`: yesterday, 7d, or a day such as 2026-11-22. Default: %(default)s."
    command.add_argument("--traffic-period", default=WEEK, metavar="PERIOD", help=period)
    add_reading(command)
    for name, what in (("", "callers"), ("-requests", "requests")):
        text = f"Fail if more than this share of the {what} would be newly rejected, such as 0.1%%."
        command.add_argument(f"--max-newly-rejected{name}", type=_share, metavar="PERCENT", help=text)


def forecast(plan: FilePlan, options: Mapping[str, Any]) -> TrafficForecast | SamplesForecast:
    """Forecast the effect of a plan, with these arguments. Raises WrongOption, WrongFormat, OSError."""
    logs = options["traffic"]
    before, after = (RuleSet.from_snapshot(each) for each in (plan.now, plan.planned))
    renamed = pairs(plan.now["rules"], plan.planned["rules"])
    old_slugs = {pair.after["slug"]: pair.before["slug"] for pair in renamed if pair.before and pair.after}
    changed = _changed_rules(before, after, old_slugs)
    if SAMPLES in logs:
        if len(logs) > 1 or any(options[name] for name in ("identity", "field", "timezone", "any_order")):
            raise WrongOption(
                _("--traffic samples cannot be combined with logs. For a log with this name, write ./samples.")
            )
        return _from_samples(changed, options["traffic_period"])
    chosen = Options(max_memory=options["max_memory"], is_current=True)
    with open_logs(logs, options["traffic_format"], options, (before, after)) as files:
        return TrafficForecast(compare(files, before, after, chosen), frozenset(rule.slug for _saved, rule in changed))


def _changed_rules(
    before: RuleSet, after: RuleSet, old_slugs: Mapping[str, str]
) -> Sequence[tuple[RuleRecord | None, RuleRecord]]:
    """Return the enforced rules that a plan adds or changes, each with its current state; `None` = it is new."""
    today = {rule.slug: _as_rejecting(rule) for rule in before.rules}
    both = [(today.get(old_slugs.get(rule.slug, rule.slug)), rule) for rule in after.rules if rule.mode == "enforce"]
    return [
        (saved, rule) for saved, rule in both if saved is None or replace(saved, slug=rule.slug, name=rule.name) != rule
    ]


def _from_samples(changed: Sequence[tuple[RuleRecord | None, RuleRecord]], period_name: str) -> SamplesForecast:
    try:
        period = read_period(period_name)
    except ValueError as error:
        raise WrongOption(str(error)) from error
    found = {rule.slug: Forecast(saved, rule, period.period) for saved, rule in changed}
    return SamplesForecast(period.name, found)


def _as_rejecting(rule: RuleRecord) -> RuleRecord:
    """Return a rule with its mode's effect: a rule that is not enforced rejects nothing, so it counts as off."""
    return rule if rule.mode == "enforce" else replace(rule, mode="off")


def _unknown(slug: str) -> str:
    return _("%(rule)s: nothing is recorded in this period, so it is not known whom it would reject.") % {"rule": slug}


def _untold(slug: str, found: Forecast) -> str | None:
    """Return why the effect of a rule is not known; `None` = the samples show it."""
    if not found.sampled:
        return _unknown(slug)
    if is_of_others(found):
        text = _("%(rule)s: what it applies to or counts by changes, so the samples do not say whom it would reject.")
        return text % {"rule": slug}
    if found.unrecorded:
        text = _("%(rule)s: nothing is recorded for tiers that are not limited now: %(tiers)s.")
        return text % {"rule": slug, "tiers": tiers_in_words(found.unrecorded)}
    return None


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _share(text: str) -> float:
    match = _PERCENT.fullmatch(text.strip())
    if match is None:
        raise ArgumentTypeError(f"{text!r} is not a percentage; write it like 0.1%")
    return float(match[1]) / 100
