"""`manage.py ratelimit`: commands for operators."""

from __future__ import annotations

import re
from argparse import SUPPRESS, ArgumentParser, Namespace
from contextlib import suppress
from functools import partial, partialmethod
from typing import Any, Final, NoReturn

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError

from ...backend import get_engine
from ...conf import settings
from ...engine.memory import MemoryEngine
from ...exceptions import EngineUnavailable, WrongRedis
from ...inspection.caller import KINDS, Caller, caller_of, named, parts_of
from ...inspection.caller_report import lines_of as lines_of_caller
from ...inspection.caller_report import report_of
from ...inspection.explanation import Explanation, explain, lines_of
from ...inspection.question import Question, asked, pairs
from ...inspection.references import Rejected
from ...inspection.reset import counters_now, forget
from ...rules import cache
from ...rules.stored import published
from ...usage.collector.alerts import Thresholds, lag, send_alerts
from ...usage.collector.collect import Collected, run
from ...values.bounds import closest
from ..about import about
from ..about import lines_of as lines_of_project
from ..files import FileCommands, add_file_commands
from ..output import Progress, Terminal, counted, once_connected, quiet_pipes
from ..traffic import TrafficCommands, add_replay

#: A digest that looks like an option: one in 64 does.
_LIKE_AN_OPTION: Final = re.compile(r"-[A-Za-z0-9_-]{21}")

#: The names of a caller that are only known from its counters.
_COUNTED: Final = ("digest", "reference")


class Command(FileCommands, TrafficCommands, BaseCommand):
    """The subcommands; each is a method with the prefix "run_"."""

    help = "Work with the rate limits."
    #: `off` must work although a setting is wrong.
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        commands = parser.add_subparsers(dest="subcommand", required=True, metavar="SUBCOMMAND", parser_class=_Parser)
        for name, text in (
            ("collect", "Move the usage that Redis counted to the database. Run it each minute."),
            (
                "watch",
                "Warn if a rule rejects too much or if collecting is behind, as `collect` does, but collect nothing.",
            ),
        ):
            _add_thresholds(commands.add_parser(name, help=text))
        for name, text in (
            ("off", "Stop all enforcement, on every process, within a second."),
            ("on", "Resume enforcement."),
        ):
            commands.add_parser(name, help=text).add_argument(
                "--reason", default="", help="The reason, shown in the history."
            )
        commands.add_parser("about", help="Show versions and settings for the report of an error, without secrets.")
        _add_question(commands.add_parser("explain", help="Show the answer that a request would get now, and why."))
        add_file_commands(commands)
        caller = commands.add_parser("caller", help="Show a caller's tier, counters, and whether they are blocked.")
        _add_counted(_add_caller(caller), caller)
        _add_caller(commands.add_parser("forget", help="Remove what is stored about a caller, and say what stays."))
        text = "Show what rules would have done to the requests of access logs."
        add_replay(commands.add_parser("replay", help=text))
        for command in commands.choices.values():
            _add_common(command)

    def run_from_argv(self, argv: list[str]) -> None:
        """Run the command line, in which a digest may begin with a hyphen."""
        joined = list[str]()
        for word in argv:
            if joined[-1:] == ["--digest"] and _LIKE_AN_OPTION.fullmatch(word):
                joined[-1] += f"={word}"
            else:
                joined.append(word)
        super().run_from_argv(joined)

    def handle(self, *args: Any, subcommand: str, **options: Any) -> None:
        """Run the subcommand. Exit code 1, with the reason, if it fails."""
        self._options = options
        self.stdout, self.stderr = Terminal(self.stdout), Terminal(self.stderr)
        with self.telling_errors(), quiet_pipes(self.stdout, self.stderr):
            if subcommand in ("caller", "explain", "forget", "watch"):
                with suppress(EngineUnavailable):  # each says what is not known then
                    if problem := published.held().problem:
                        raise WrongRedis(problem)
            getattr(self, f"run_{subcommand}")()

    def run_about(self) -> None:
        """Show versions and settings."""
        found = about()
        self.say(lines_of_project(found), found)

    def run_watch(self) -> None:
        """Send alerts by the log and by signals, once when each condition begins."""
        found = lag()
        send_alerts(found, self._thresholds())
        text = "No usage is waiting to be collected."
        if found.batches:
            text = f"{counted(found.batches, 'batch', ' waits,es wait')}, for {found.seconds:.0f} seconds."
        self.say([text], found)

    def run_collect(self) -> None:
        """Collect the usage, and report the result."""
        with Progress(self.stderr) as progress:
            collected, deleted = run(self._thresholds(), partial(_batches_done, progress))
        self._warn_of_memory()
        text = [_summary(collected)]
        if deleted:
            text.append(f"Deleted {counted(deleted, 'row')} that are older than RETENTION allows.")
        self.say(text, collected._asdict() | {"deleted": deleted})
        if collected.failed:
            batches = counted(collected.failed, "batch", "es")
            raise CommandError(f"{batches} could not be collected, and will be tried again; the log says why.")

    def _thresholds(self) -> Thresholds:
        try:
            return Thresholds(**{name: self._options[name] for name in Thresholds.__slots__})
        except ValueError as error:
            raise CommandError(str(error)) from error

    def _warn_of_memory(self) -> None:
        if isinstance(get_engine(), MemoryEngine):
            self.warn(
                "RATELIMITER names no Redis, so each process counts in its own memory. No other process can read "
                "these counts."
            )

    def run_explain(self) -> None:
        """Explain the decision on a request. Nothing is charged."""

        def ask() -> Explanation:
            question, logged = _question_from(self._options)
            return explain(question, logged)

        explanation = once_connected(ask, lambda found: not found.is_degraded)
        self._warn_of_memory()
        self.say(lines_of(explanation), explanation)
        if explanation.logged and explanation.logged.problem:
            raise EngineUnavailable(explanation.logged.problem)

    def run_caller(self) -> None:
        """Show a caller, as text or JSON. Nothing is charged."""
        known = self._options["known"]
        who = once_connected(partial(caller_of, *self._named(), known), bool)
        if who.kind == "digest":
            once_connected(partial(counters_now, who), lambda found: not found.problem)
            who = named(who, others=known)
        report = once_connected(partial(report_of, who), lambda report: not report.problem)
        if report.is_unknown:
            raise _no_such(who)
        self.say(lines_of_caller(report), report)
        if report.problem:
            raise EngineUnavailable(report.problem)

    def run_forget(self) -> None:
        """Remove what is stored about a caller, and say what stays, and until when."""
        kind, value = self._named()
        who = caller_of(kind, value, must_count=False)
        once_connected(partial(counters_now, who), lambda found: not found.problem)
        found = forget(who)
        if who.is_unknown_row and not found.removed and not found.problem:
            raise _no_such(who)
        removed = [*found.removed]
        text = "removed" if removed else "nothing was stored"
        if found.problem:
            text = "removed from the database alone" if removed else "nothing was removed"
            removed.append("not known: Redis could not be asked, so counters and names may be stored there")
        stays = ["What stays, and for how long:", *(f"  {line}" for line in found.staying)]
        lines = [f"{_as_typed(who, kind, value)}: {text}", *(f"  {line}" for line in removed), *stays]
        self.say(lines, {"caller": str(who), **found._asdict()})
        if found.problem:
            text = "Redis cannot be reached now, so counters and names stay. Run this again"
            raise CommandError(f"{text}: {found.problem}")

    def _named(self) -> tuple[str, str]:
        """Return the kind and the value that name the caller, by an option or as one text."""
        text = self._options["caller"]
        if text is None:
            return next(
                (kind, self._options[kind]) for kind in (*KINDS, *_COUNTED) if self._options.get(kind) is not None
            )
        [(kind, value), *others] = parts_of(text).items()
        return ("partition", text) if others or kind not in KINDS else (kind, value)

    def _switch(self, enabled: bool) -> None:
        """Stop or resume all enforcement."""
        try:
            changed = cache.switch_enforcement(enabled, reason=self._options["reason"])
        except DatabaseError as error:
            way_out = "You can set RATELIMITER['ENABLED'] to False, which needs no database."
            raise CommandError(f"The database cannot be written now. {way_out} {error}") from error
        if not settings.ENABLED:
            self.warn("RATELIMITER['ENABLED'] is False: processes with this setting enforce nothing.")
        if enabled:
            text = f"Rules are enforced {'again' if changed else 'already'}."
        else:
            text = f"All enforcement is stopped{'' if changed else ' already'}."
        problem = cache.publish_problem()
        self.say([] if problem else [text], {"enforced": enabled, "changed": changed, "published": not problem})
        if problem:
            raise CommandError(problem)

    run_off, run_on = partialmethod(_switch, False), partialmethod(_switch, True)


def _batches_done(progress: Progress, done: int, waiting: int) -> None:
    progress(lambda: (done / max(waiting, 1), f"{done} of {waiting} batches ..."))


def _add_thresholds(command: ArgumentParser) -> None:
    """Add the thresholds of alerts, see `Thresholds`."""
    usual = Thresholds()
    for name, kind, text in (
        ("percent", float, "Warn if a rule rejects more than this percentage of its requests."),
        ("minutes", int, "In this number of past minutes."),
        ("least", int, "Only if there were at least this many requests."),
        ("behind", float, "Warn if usage has waited for more than this number of seconds."),
    ):
        text += " Default: %(default)s."
        command.add_argument(f"--{name}", type=kind, default=getattr(usual, name), help=text)


def _add_common(command: ArgumentParser) -> None:
    """Add --json, and options of all Django commands, which are allowed before and after a subcommand."""
    for option in ("--settings", "--pythonpath"):
        command.add_argument(option, default=SUPPRESS, help=SUPPRESS)
    command.add_argument("--json", action="store_true", help="Write one JSON document to the standard output.")
    for option in ("--traceback", "--no-color"):
        command.add_argument(option, action="store_true", default=SUPPRESS, help=SUPPRESS)


def _as_typed(who: Caller, kind: str, value: str) -> str:
    """Return the caller with what was typed; of a key only the start, and nothing of another secret."""
    if kind == "user" or (who.is_secret and kind == "partition"):
        return str(who)
    if who.is_secret or kind == "api_key":
        value = f"{value[: min(4, len(value) // 4)]}…"
    return f"{'' if kind == 'partition' else f'{kind}:'}{value} ({who})"


def _no_such(who: Caller) -> CommandError:
    more = " Give its primary key." if who.kind == "customer" else ""
    return CommandError(f"There is no such {who.kind}, and no rule has counted requests with this key recently.{more}")


class _Parser(CommandParser):
    """The arguments of a subcommand, whose errors show its own usage."""

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """End with the code 1 if the arguments of `plan` are wrong: 2 says that something would change."""
        super().exit(1 if status and self.prog.endswith(" plan") else status, message)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Namespace, list[str]]:  # type: ignore[override]
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            close = closest(unknown[0].partition("=")[0], self._option_string_actions)
            self.error(f"unrecognized arguments: {' '.join(unknown)}" + (f". Did you mean {close}?" if close else ""))
        return found, unknown


def _add_caller(command: ArgumentParser) -> Any:
    """Add the arguments that identify a caller; return their group."""
    who = command.add_mutually_exclusive_group(required=True)
    who.add_argument("caller", nargs="?", help="A kind of value and the value, such as user:42 or ip:192.0.2.1.")
    who.add_argument("--user", help="The primary key or login name of a user.")
    who.add_argument(
        "--api-key", help="An API key, or its SHA-256 in hex, which keeps the key out of the shell's history."
    )
    who.add_argument("--ip", help="An IP address.")
    who.add_argument("--customer", help="The primary key of a customer.")
    who.add_argument("--session", help="A session key.")
    who.add_argument("--partition", help="A kind of value and the value, such as header:X-Org=acme.")
    return who


def _add_counted(who: Any, command: ArgumentParser) -> None:
    """Add what names a caller that was counted, and values that rules count by."""
    who.add_argument("--digest", help="The digest of a caller, as shown in reports.")
    who.add_argument("--reference", help="The reference of a rejection, such as export#eJL8d1F2.")
    command.add_argument(
        "--known",
        action="append",
        default=[],
        help="Another value of the caller's requests, such as path:pk=7. May be repeated.",
    )


#: Options with one text, and what that is.
_OF_QUESTION: Final = {
    "view": "The name of a view, instead of a path.",
    "user": "A login name or a primary key.",
    "api_key": "An API key as callers send it, the hash of a known key, or value: and what API_KEY_RESOLVER returns.",
    "ip": "The IP address that connects to the site.",
    "scope": "A scope that your code asks for, besides those that the view is known to name.",
}


def _add_question(parser: ArgumentParser) -> None:
    """Add the arguments of a question."""
    path = "A path of this site, with or without a query, or a URL."
    for name, default, text in (("method", "GET", "Such as GET."), ("path", "", path)):
        parser.add_argument(name, nargs="?", default=default, metavar=name.upper(), help=text)
    for name, text in _OF_QUESTION.items():
        parser.add_argument(f"--{name.replace('_', '-')}", default="", help=text)
    identity = "A value that rules count by, such as tenant=acme or header:X-Org=acme. May be repeated."
    parser.add_argument("--identity", action="append", default=[], metavar="NAME=VALUE", help=identity)
    parser.add_argument("--curl", default="", metavar="COMMAND", help="A curl command, instead of METHOD and PATH.")
    reference = "The reference of a rejection, such as export#eJL8d1F2, or a text with it: marks its counter."
    parser.add_argument("--reference", default="", metavar="TEXT", help=reference)


def _question_from(options: dict[str, Any]) -> tuple[Question, Rejected | None]:
    """Return the question in these arguments, and what the reference names. Raises QuestionError."""
    question = Question(
        method=options["method"],
        path=options["path"],
        identities=dict(pairs(options["identity"], "=", "identities")),
        **{name: options[name] for name in _OF_QUESTION},
    )
    return asked(question, options["curl"], options["reference"])


def _summary(collected: Collected) -> str:
    if not collected.batches:
        return "Nothing to collect: no minute with usage has ended since the last collection."
    batches, decisions = counted(collected.batches, "batch", "es"), counted(collected.requests, "decision")
    return f"Collected {batches}: {decisions} of rules."
