"""`manage.py ratelimit replay`."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import Any

from django.core.management.base import CommandError

from ..forecast.logs.console import add_replay, replay
from ..forecast.logs.report.data import csv_of, json_of
from ..forecast.logs.report.decisions import decision_writer
from ..forecast.logs.report.html import html_of
from ..forecast.logs.report.text import lines_of, not_known, notes_of
from ..values.terminal import on_terminal
from .output import Progress, SayingCommand, require_writable, whole_file, write_file


class ForecastCommands(SayingCommand):
    """Subcommands that forecast the effect of rules; each is a method of its name."""

    def add_forecast_commands(self, commands: Any) -> None:
        """Add the subcommands."""
        add_replay(commands.add_parser("replay", help="Show what rules would do with the requests of an access log."))

    def replay(self) -> None:
        """Replay logs. Nothing is charged, and nothing is saved."""
        with ExitStack() as stack:
            if self._options["html"]:  # test before the replay, which may take an hour
                require_writable(self._options["html"])
            name = self._options["decisions"]
            watch = decision_writer(stack.enter_context(whole_file(name)).write) if name else None
            is_shown = not self._options["no_progress"]
            progress = stack.enter_context(Progress(self.stderr)) if is_shown else lambda describe: None
            report, speed = replay(self._options, progress, watch)
        if is_shown:
            self.stderr.write(speed, str)
        if self._options["csv"] and not self._options["json"]:
            csv_of(report, self.stdout)
            self.stderr.write(on_terminal(notes_of(report)))
        else:
            self.say(lines_of(report), partial(json_of, report))
        if self._options["html"]:  # last, so that nothing is lost if the disk is full
            write_file(self._options["html"], html_of(report))
        if not report.is_known:
            raise CommandError(not_known(report))
