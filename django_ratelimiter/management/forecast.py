"""`manage.py ratelimit replay`."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils.translation import gettext as _

from ..forecast.console import WrongOption, add_replay, replay
from ..forecast.logs.line import WrongFormat
from ..forecast.report.text import lines_of
from ..forecast.rule_sets import UnknownRules


class ForecastCommands(BaseCommand):
    """Subcommands that say what rules would do; each is a method of its name."""

    _options: dict[str, Any]

    def add_forecast_commands(self, commands: Any) -> None:
        """Add the subcommands."""
        add_replay(commands.add_parser("replay", help="Say what rules would do with the requests of an access log."))

    def replay(self) -> None:
        """Replay logs. Nothing is charged, and nothing is saved."""
        try:
            report = replay(self._options, self.stderr)
        except (WrongOption, WrongFormat, UnknownRules, OSError) as error:
            raise CommandError(str(error)) from error
        files = report.files
        if files.unreadable:
            self.stderr.write(_("%s lines cannot be read:") % f"{files.unreadable:,}")
            for name, number, why, text in files.shown:
                self.stderr.write(f"  {name}:{number}: {why}: {text}")
        for line in lines_of(report.found, report.check):
            self.stdout.write(line)
