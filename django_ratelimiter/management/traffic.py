"""The effect of changed rules on traffic: `replay` with access logs, and `plan --traffic` with logs or samples."""

from __future__ import annotations

import re
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from time import monotonic
from typing import Any, Final
from zoneinfo import ZoneInfo

from django.core.management.base import CommandError
from django.utils import timezone

from ..conf import has_identity, unknown_identity
from ..engine.base import Version
from ..forecast.answer import Blind, RuleForecast
from ..forecast.evaluate import MAX_CALLERS
from ..forecast.logs.formats import FORMATS, ROLES, Wanted
from ..forecast.logs.reading import LogFiles
from ..forecast.logs.requests import TIER
from ..forecast.logs.source import MAX_MEMORY, LogTraffic
from ..forecast.samples import WEEK, Samples, read_period
from ..rules import cache
from ..rules.files.planning import FilePlan
from ..rules.files.texts import load
from ..rules.records import RuleRecord
from ..rules.ruleset import RuleSet
from ..rules.stored import storage
from ..rules.stored.history.changes import pairs
from ..values.partitions import is_identity
from ..values.terminal import visible
from . import output

#: The argument that selects the recorded samples instead of a log.
SAMPLES: Final = "samples"

#: Targets of fields that are not identities: the caller's tier, and X-Forwarded-For.
_ROLES: Final = (TIER, "forwarded")

_PERCENT: Final = re.compile(r"(\d+(?:\.\d+)?)\s*%?")

#: Changed rules, each with its earlier state; `None` = it is new, or rejected nothing.
Changes = Sequence[tuple[RuleRecord | None, RuleRecord]]


@dataclass(frozen=True)
class Forecasts:
    """What changed rules would have done, each by itself. traffic: of what, as data. notes: on it, as text."""

    traffic: Mapping[str, Any]
    notes: Sequence[str]
    rules: Sequence[RuleForecast]

    def lines(self) -> Iterator[str]:
        """Yield the forecasts for people."""
        yield str(self.traffic["text"])
        if not self.rules:
            yield "No enforced rule changes, so nobody is newly rejected."
        for each in self.rules:
            yield from each.lines()
        yield from map(visible, self.notes)

    @property
    def unknown(self) -> list[str]:
        """The rules of which it is not known whom they would reject."""
        return [each.slug for each in self.rules if not each.is_known]

    def not_known(self) -> str:
        """Return the error that names the rules that are not known; the report says why."""
        return visible(f"Not known whom these rules would reject: {', '.join(self.unknown)}.")

    def data(self) -> dict[str, Any]:
        """Return the forecasts for programs."""
        rules = {each.slug: each.data() for each in self.rules}
        return {**self.traffic, "notes": [*self.notes], "unknown": self.unknown, "rules": rules}


def add_replay(command: ArgumentParser) -> None:
    """Add the arguments of `replay`."""
    command.add_argument("logs", nargs="+", metavar="LOG", help="Access log, plain or compressed; - = standard input.")
    after = command.add_mutually_exclusive_group()
    after.add_argument("--rules", metavar="FILE", help="Ask about the rules of this file.")
    after.add_argument("--version", type=int, metavar="N", dest="rule_version", help="Ask about this stored version.")
    after.add_argument("--draft", action="store_true", help="Ask about today's rules, those in shadow as enforced.")
    command.add_argument("--against", metavar="FILE|N", help="Compare with these rules. Default: the rules in force.")
    add_reading(command, "--format")
    text = "The number of callers to list. Default: %(default)s."
    command.add_argument("--top", type=int, default=MAX_CALLERS, metavar="N", help=text)
    command.add_argument("--no-progress", action="store_true", help="Do not show progress.")


def add_traffic(command: ArgumentParser) -> None:
    """Add the arguments for a forecast to `plan`."""
    log = "Show what the change would have done to the requests of this access log (may be repeated), or `samples`."
    command.add_argument("--traffic", action="append", default=[], metavar="LOG", help=log)
    period = "With `--traffic samples`: yesterday, 7d, or a day such as 2026-11-22. Default: %(default)s."
    command.add_argument("--traffic-period", default=WEEK, metavar="PERIOD", help=period)
    add_reading(command, "--traffic-format")
    for name, what in (("", "callers"), ("-requests", "requests")):
        text = f"Fail if more than this share of the {what} would be newly rejected, such as 0.1%%."
        command.add_argument(f"--max-newly-rejected{name}", type=_share, metavar="PERCENT", help=text)


def add_reading(command: ArgumentParser, format_name: str) -> None:
    """Add the arguments that say how to read a log."""
    text = f"{', '.join(FORMATS)}, or a regular expression with named groups. Default: %(default)s."
    command.add_argument(format_name, default="auto", dest="log_format", metavar="FORMAT", help=text)
    text = "Use a field of the log as an identity: http_x_api_key=api_key. Also FIELD=tier, FIELD=forwarded."
    command.add_argument("--identity", action="append", default=[], metavar="FIELD=IDENTITY", help=text)
    text = f"The field of a JSON log for a role, such as path=request.uri. Roles: {', '.join(ROLES)}."
    command.add_argument("--field", action="append", default=[], metavar="ROLE=FIELD", help=text)
    text = "The time zone of times without one, such as Europe/Berlin. Default: that of the project."
    command.add_argument("--timezone", metavar="NAME", help=text)
    command.add_argument("--asgi", action="store_true", help="Let queues delay requests for any time, as under ASGI.")
    text = "Keep only one caller in sixteen rather than take more memory than this. Default: %(default)s MB."
    command.add_argument("--max-memory", type=int, default=MAX_MEMORY, metavar="MB", help=text)
    text = "Accept what the traffic does not show of this rule (may be repeated)."
    command.add_argument("--accept", action="append", default=[], metavar="RULE", help=text)


def forecast_plan(plan: FilePlan, options: Mapping[str, Any]) -> Forecasts:
    """Forecast the effect of a plan, with these arguments. Raises CommandError, WrongFormat, OSError."""
    before, after = (RuleSet.from_snapshot(each) for each in (plan.now, plan.planned))
    renamed = pairs(plan.now["rules"], plan.planned["rules"])
    old_slugs = {pair.after["slug"]: pair.before["slug"] for pair in renamed if pair.before and pair.after}
    changes, logs = _changed(before, after, old_slugs), options["traffic"]
    if SAMPLES not in logs:
        return _from_logs(logs, (before, after), changes, options)
    if len(logs) > 1 or any(options[name] for name in ("identity", "field", "timezone", "asgi")):
        raise CommandError("--traffic samples cannot be combined with logs; a log of this name is ./samples.")
    try:
        name, period = read_period(options["traffic_period"])
    except ValueError as error:
        raise CommandError(str(error)) from error
    found = [Samples(*pair, period).forecast() for pair in changes]
    if _has_other_tiers(before, after):
        blind = Blind("tiers", "callers get other tiers, and the samples have those of then")
        found = [replace(each, blind=[*each.blind, blind]) if each.after.depends_on_tier else each for each in found]
    traffic = {"source": SAMPLES, "period": name, "text": f"From recorded samples, {name}:"}
    return Forecasts(traffic, (), _accepted(found, options["accept"]))


def _from_logs(
    logs: Sequence[str],
    rule_sets: tuple[RuleSet, RuleSet],
    changes: Changes,
    options: Mapping[str, Any],
    show: Any = None,
    *,
    is_change: bool = True,
) -> Forecasts:
    wanted = Wanted(options["log_format"], _identities(options["identity"]), read_fields(options["field"]))
    zone = timezone.get_current_timezone()
    if options["timezone"]:
        try:
            zone = ZoneInfo(options["timezone"])
        except (KeyError, OSError, ValueError) as error:
            raise CommandError(f"--timezone {options['timezone']}: there is no such time zone.") from error
    files = LogFiles(logs, wanted, zone)
    traffic = LogTraffic(files, rule_sets, changes, options["max_memory"], show and _progress(files, show))
    delay, top = None if options["asgi"] else "rule", options.get("top", MAX_CALLERS)
    rules = [traffic.forecast(*pair, delay, is_change=is_change, top=top) for pair in changes]
    requests = traffic.decided if changes else traffic.lines - traffic.unreached
    times = [datetime.fromtimestamp(us // 1_000_000, UTC) for us in (traffic.first_us, traffic.last_us)]
    first, last = (f"{each:%Y-%m-%d %H:%M:%S}" for each in times)
    matched = " that the changed rules match" if changes else ""
    data = {
        "source": "logs",
        "files": files.names,
        "formats": [each.format for each in files.files if each.format],
        **{name: getattr(traffic, name) for name in ("lines", "decided", "unreached")},
        "unreadable": traffic.unread,
        "first": first,
        "last": last,
        "text": f"Traffic: {requests:,} requests{matched}, {first} to {last} (UTC).",
    }
    return Forecasts(data, [*traffic.notes()], _accepted(rules, options["accept"]))


def _accepted(found: Sequence[RuleForecast], slugs: Sequence[str]) -> Sequence[RuleForecast]:
    """Return the forecasts, those of these rules as accepted. Raises CommandError for a rule that is not among them."""
    for slug in slugs:
        if slug not in {each.slug for each in found}:
            raise CommandError(f"--accept {slug}: no such rule changes.")
    return [replace(each, accepted=each.slug in slugs) for each in found]


def _changed(before: RuleSet, after: RuleSet, old_slugs: Mapping[str, str]) -> Changes:
    """Return the enforced rules that differ, each with its earlier state, or whose callers have other tiers."""
    today = {rule.slug: _as_rejecting(rule) for rule in before.rules}
    enforced = [_as_rejecting(rule) for rule in after.rules if rule.mode == "enforce"]
    both = [(today.get(old_slugs.get(rule.slug, rule.slug)), rule) for rule in enforced]
    has_other_tiers = _has_other_tiers(before, after)
    return [
        (saved, rule)
        for saved, rule in both
        if saved is None
        or replace(saved, slug=rule.slug, name=rule.name) != rule
        or (has_other_tiers and rule.depends_on_tier)
    ]


def _has_other_tiers(before: RuleSet, after: RuleSet) -> bool:
    """Return whether callers may have other tiers in one of the rule sets."""
    return _ranked(before, after) != _ranked(after, before)


def _ranked(rules: RuleSet, others: RuleSet) -> list[tuple[str, str]]:
    """Return the tiers that callers may have in both rule sets, the lowest first, with who has them by default."""
    tiers = sorted(rules.tiers.values(), key=lambda tier: (tier.rank, tier.slug))
    return [(tier.slug, tier.default_for) for tier in tiers if tier.slug in others.tiers or tier.default_for != "none"]


def _as_rejecting(rule: RuleRecord) -> RuleRecord:
    """Return a rule with its mode's effect, off if it rejects nothing, and without the generations of its counters."""
    limits = {tier: tuple(each._replace(generation=0) for each in found) for tier, found in rule.limits.items()}
    return replace(rule, limits=limits, mode="enforce" if rule.mode == "enforce" else "off")


def _identities(given: Sequence[str]) -> dict[str, str]:
    """Return the identities by the fields of the log that contain them. Raises CommandError."""
    found = {}
    for each in given:
        field, _equals, identity = each.rpartition("=")
        if not field or not (identity in _ROLES or is_identity(identity)):
            text = "write FIELD=IDENTITY, such as http_x_api_key=api_key or remote_user=user."
            raise CommandError(f"--identity {each}: {text}")
        if identity not in _ROLES and not has_identity(identity):
            raise CommandError(unknown_identity(identity))
        found[field] = identity
    return found


def read_fields(given: Sequence[str]) -> dict[str, str]:
    """Return the fields by their roles. Raises CommandError."""
    found = {}
    for each in given:
        name, _equals, field = each.partition("=")
        role = next((role for role, names in ROLES.items() if name in (role, *names)), None)
        if role is None or not field:
            text = f"write ROLE=FIELD, such as path=request.uri. Roles: {', '.join(ROLES)}."
            raise CommandError(f"--field {each}: {text}")
        found[role] = field
    return found


class TrafficCommands(output.SayingCommand):
    """A command with the subcommand `replay`."""

    def run_replay(self) -> None:
        """Forecast what rules would have done to the requests of logs. Nothing is charged, and nothing is saved."""
        options = self._options
        before = _named(options["against"]) if options["against"] else cache.current_rules()
        after = before
        if options["rules"]:
            after = _of_file(options["rules"])
        elif options["rule_version"] is not None:
            after = _version(options["rule_version"])
        elif options["draft"]:
            rules = [replace(rule, mode="enforce") if rule.mode == "shadow" else rule for rule in before.rules]
            after = RuleSet(before.version, before.tiers.values(), rules, is_versioned=False)
        elif options["against"]:
            after = cache.current_rules()
        is_change = after is not before
        changes: Changes = [(None, rule) for rule in after.rules if not rule.is_off]
        if is_change:
            changes = _changed(before, after, {})
        with ExitStack() as stack:
            show = None if options["no_progress"] else stack.enter_context(output.Progress(self.stderr))
            found = _from_logs(options["logs"], (before, after), changes, options, show, is_change=is_change)
        self.say(found.lines(), found.data)
        if found.unknown:
            raise CommandError(found.not_known())


def _of_file(path: str) -> RuleSet:
    return RuleSet.from_snapshot(load(path).snapshot)


def _named(text: str) -> RuleSet:
    return _version(int(text)) if text.isdigit() else _of_file(text)


def _version(number: int) -> RuleSet:
    """Return a stored version. Raises CommandError."""
    found = storage.snapshots().filter(number=number).values_list("snapshot", "number", "epoch").first()
    if found is None:
        raise CommandError(f"There is no version {number}.")
    return RuleSet.from_snapshot(found[0], Version(*found[1:]))


def _progress(files: LogFiles, show: Any) -> Callable[[int], None]:
    """Return what shows how far the reading is, if it is time. show: takes what returns the share and a text."""
    began = monotonic()

    def describe(lines: int) -> tuple[float, str]:
        rate, total = lines / (monotonic() - began), files.total_bytes
        share = files.bytes_read() / total if total else 0.0
        return share, f"{lines:,} lines, {rate:,.0f} a second"

    return lambda lines: show(lambda: describe(lines))


def _share(text: str) -> float:
    match = _PERCENT.fullmatch(text.strip())
    if match is None:
        raise ArgumentTypeError(f"{text!r} is not a percentage; write it like 0.1%")
    return float(match[1]) / 100
