"""`manage.py ratelimit replay`: its arguments, its progress, and the output of its reports."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import monotonic
from typing import Any, Final
from zoneinfo import ZoneInfo

from django.utils import timezone
from django.utils.translation import gettext as _

from ...conf import has_identity, unknown_identity
from ...rules.ruleset import RuleSet
from ...values.partitions import is_identity
from . import rule_sets
from .callers import TIER
from .comparison import MAX_MEMORY, Options, ReplayReport, compare
from .formats import FORMATS, ROLES, Wanted
from .reading import LogFiles

#: Shows progress: the share from 0 to 1, 0 = not known, and a text, which this function returns.
Show = Callable[[Callable[[], tuple[float, str]]], None]

#: Targets of fields that are not identities: the caller's tier, and X-Forwarded-For.
_ROLES: Final = (TIER, "forwarded")


class WrongOption(ValueError):
    """An option of the command that is not possible."""


def add_replay(command: ArgumentParser) -> None:
    """Add the arguments of `replay`."""
    command.add_argument("logs", nargs="+", metavar="LOG", help="Access log, plain or compressed; - = standard input.")
    after = command.add_mutually_exclusive_group()
    after.add_argument("--rules", metavar="FILE", help="Replay the rules of this file.")
    after.add_argument("--version", type=int, metavar="N", dest="rule_version", help="Replay this stored version.")
    after.add_argument(
        "--draft", action="store_true", help="Replay today's rules, as if rules in shadow were enforced."
    )
    command.add_argument("--against", metavar="FILE|N", help="Compare with these rules. Default: the rules in force.")
    names = ", ".join(FORMATS)
    command.add_argument(
        "--format", default="auto", help=f"{names}, or a regular expression with named groups. Default: %(default)s."
    )
    add_reading(command)
    command.add_argument("--asgi", action="store_true", help="Let queues delay requests for any time, as under ASGI.")
    command.add_argument(
        "--top", type=int, default=20, metavar="N", help="The number of callers to list. Default: %(default)s."
    )
    command.add_argument("--csv", action="store_true", help="Write all tables as CSV.")
    command.add_argument("--html", metavar="FILE", help="Write a report with charts to this file.")
    command.add_argument("--decisions", metavar="FILE", help="Write each decision to this file, as JSON lines.")
    command.add_argument("--no-progress", action="store_true", help="Do not show progress.")


def add_reading(command: ArgumentParser) -> None:
    """Add the arguments that say how to read a log, and how many callers are remembered."""
    text = "Use a field of the log as an identity: http_x_api_key=api_key. Also FIELD=tier, FIELD=forwarded."
    command.add_argument("--identity", action="append", default=[], metavar="FIELD=IDENTITY", help=text)
    text = f"The field of a JSON log for a role, such as path=request.uri. Roles: {', '.join(ROLES)}."
    command.add_argument("--field", action="append", default=[], metavar="ROLE=FIELD", help=text)
    text = "The time zone of times without one, such as Europe/Berlin. Default: that of the project."
    command.add_argument("--timezone", metavar="NAME", help=text)
    text = "Also replay lines that are not in the order of their times, where they stand."
    command.add_argument("--any-order", action="store_true", help=text)
    text = "Stop before the process takes more memory than this. Default: %(default)s MB."
    command.add_argument("--max-memory", type=int, default=MAX_MEMORY, metavar="MB", help=text)


def open_logs(
    names: Sequence[str], format_name: str, options: Mapping[str, Any], rule_sets: Iterable[RuleSet | None]
) -> LogFiles:
    """Open logs with the arguments of `add_reading`. Raises WrongOption, WrongFormat, OSError.

    rule_sets: what their rules count by is read of each line.
    """
    identities = _identities(options["identity"])
    counted = {name for each in rule_sets if each for rule in each.rules for name in rule.partition_by}
    in_target = [name for name in sorted(counted - {*identities.values()}) if name == "host" or name[:6] == "query:"]
    wanted = Wanted(format_name, identities, read_fields(options["field"]), tuple(in_target))
    zone = timezone.get_current_timezone()
    if options["timezone"]:
        try:
            zone = ZoneInfo(options["timezone"])
        except (KeyError, OSError, ValueError) as error:
            raise WrongOption(_("--timezone %s: there is no such time zone.") % options["timezone"]) from error
    return LogFiles(names, wanted, zone, any_order=options["any_order"])


def replay(options: Mapping[str, Any], show: Show, watch: Any = None) -> tuple[ReplayReport, str]:
    """Replay with these arguments; return the report and the speed. show: the progress.

    Raises WrongOption, WrongFormat, UnknownRules, TooMuchMemory, OSError.
    """
    before, after, is_current = _rule_sets(options)
    chosen = Options(options["asgi"], options["max_memory"], options["top"], is_current)
    with open_logs(options["logs"], options["format"], options, (before, after)) as files:
        progress = _Progress(files, show)
        report = compare(files, before, after, chosen, progress, watch)
    return report, _speed(progress.lines, report.seconds)


def _identities(given: Sequence[str]) -> dict[str, str]:
    """Return the identities by the fields of the log that contain them. Raises WrongOption."""
    found = {}
    for each in given:
        field, _equals, identity = each.rpartition("=")
        if not field or not (identity in _ROLES or is_identity(identity)):
            text = _("--identity %s: write FIELD=IDENTITY, such as http_x_api_key=api_key or remote_user=user.")
            raise WrongOption(text % each)
        if identity not in _ROLES and not has_identity(identity):
            raise WrongOption(unknown_identity(identity))
        found[field] = identity
    return found


def read_fields(given: Sequence[str]) -> dict[str, str]:
    """Return the fields by their roles. Raises WrongOption."""
    found = {}
    for each in given:
        name, _equals, field = each.partition("=")
        role = next((role for role, names in ROLES.items() if name in (role, *names)), None)
        if role is None or not field:
            text = _("--field %(given)s: write ROLE=FIELD, such as path=request.uri. Roles: %(roles)s.")
            raise WrongOption(text % {"given": each, "roles": ", ".join(ROLES)})
        found[role] = field
    return found


def _rule_sets(options: Mapping[str, Any]) -> tuple[RuleSet, RuleSet | None, bool]:
    """Return the rule sets to compare, and whether the first of them is the current one."""
    against = options["against"]
    before = _named(against) if against else rule_sets.in_force()
    after = None
    if options["rules"]:
        after = rule_sets.of_file(options["rules"])
    elif options["rule_version"] is not None:
        after = rule_sets.of_version(options["rule_version"])
    elif options["draft"]:
        after = rule_sets.with_shadow_enforced(rule_sets.in_force())
    elif against:
        after = rule_sets.in_force()
    return before, after, not against


def _named(text: str) -> RuleSet:
    return rule_sets.of_version(int(text)) if text.isdigit() else rule_sets.of_file(text)


class _Progress:
    """Says how far a replay is. show: takes the share, 0 = not known, and the text when it is time to show them."""

    def __init__(self, files: LogFiles, show: Show) -> None:
        self._files, self._show = files, show
        self._began = monotonic()
        self.lines = 0

    def __call__(self, lines: int) -> None:
        self.lines = lines
        self._show(self._now)

    def _now(self) -> tuple[float, str]:
        seconds = monotonic() - self._began
        rate, total = self.lines / seconds, self._files.total_bytes
        words = {"lines": f"{self.lines:,}", "rate": f"{rate:,.0f}"}
        share = self._files.bytes_read() / total if total else 0.0
        if share <= 0:
            return 0.0, _("%(lines)s lines, %(rate)s a second") % words
        words |= {"share": f"{100 * share:.0f} %", "left": f"{seconds / share - seconds:.0f}"}
        return share, _("%(share)s, %(lines)s lines, %(rate)s a second, %(left)s s left") % words


def _speed(lines: int, seconds: float) -> str:
    rate = lines / seconds if seconds else 0
    words = {"lines": f"{lines:,}", "seconds": f"{seconds:.1f}", "rate": f"{rate:,.0f}"}
    return _("%(lines)s lines in %(seconds)s s, %(rate)s a second.") % words
