"""`manage.py ratelimit export|plan|apply|check`: rules as code."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any, Final

from django.contrib.auth import get_user_model
from django.core.management.base import CommandError
from django.db import DatabaseError

from ..rules import cache
from ..rules.files.planning import FilePlan, apply_file, data_of, lines_of, plan_file
from ..rules.files.rows import RulesFile, in_lines
from ..rules.files.texts import load, text_of_database
from ..rules.stored import storage
from ..values.bounds import json_from
from ..values.terminal import on_terminal
from .output import SayingCommand, counted, write_file
from .traffic import add_traffic, forecast_plan

#: The exit code of `plan` if something would change.
CHANGES: Final = 2


def add_file_commands(commands: Any) -> None:
    """Add the subcommands for rules files."""
    _add_export(commands.add_parser("export", help="Write tiers, rules and limits as a file."))
    plan = commands.add_parser("plan", help="Show what a rules file would change. Exit code 0: nothing, 2: something.")
    plan.add_argument("--out", metavar="PLAN", help="Save the plan to this file, for `apply --plan`.")
    add_traffic(plan)
    apply = commands.add_parser("apply", help="Change the database to match a rules file.")
    apply.add_argument(
        "--plan", metavar="PLAN", help="Apply only if this plan, saved by `plan --out`, is still correct."
    )
    apply.add_argument("--author", metavar="USERNAME", help="The user who is shown in the history.")
    apply.add_argument("--reason", default="", help="The reason, shown in the history.")
    apply.add_argument(
        "--overwrite",
        action="store_true",
        help="Also undo changes made in the database since the last apply or export.",
    )
    check = commands.add_parser("check", help="Check a rules file, without a database or Redis.")
    check.set_defaults(skip_checks=True)  # some checks use both
    for command in (plan, apply, check):
        command.add_argument("file", metavar="FILE", help="A rules file, YAML or JSON; - = standard input.")
    for command in (plan, apply):
        delete = "Also delete what is not in the file: rules, and tiers that nothing uses."
        command.add_argument("--delete", action="store_true", help=delete)


def _add_export(command: ArgumentParser) -> None:
    command.add_argument("--format", choices=("yaml", "json"), help="Default: by the name of the file, else YAML.")
    command.add_argument("--to", metavar="FILE", help="Write to this new file.")
    command.add_argument("--own", action="store_true", help="Make all rules belong to the file from now on.")
    command.add_argument("--access", action="store_true", help="Include access entries, which name callers.")


class FileCommands(SayingCommand):
    """A command with the subcommands for rules files; each is a method with the prefix "run_"."""

    def run_export(self) -> None:
        """Write the rules of the database to a file or to the standard output."""
        options = self._options
        by_name = "json" if (options["to"] or "").endswith(".json") else "yaml"
        style = "json" if options["json"] else options["format"] or by_name
        text = text_of_database(style, access=options["access"], owned=options["own"])
        if options["to"]:
            write_file(options["to"], text, is_new=True)
        else:
            self.stdout.write(text, ending="")

    def run_check(self) -> None:
        """Report the errors of a file. Uses neither the database nor Redis."""
        file = self._load()
        file.check_names()
        rules, tiers = len(file.rules), len(file.tiers)
        text = f"{file.name} is valid: {counted(rules, 'rule')}, {counted(tiers, 'tier')}."
        self.say([text], {"file": file.name, "rules": rules, "tiers": tiers})

    def run_plan(self) -> None:
        """Show what a file would change. Exits with CHANGES if there are changes."""
        file, options = self._load(), self._options
        if self._most != (None, None) and not options["traffic"]:
            raise CommandError("--max-newly-rejected needs --traffic.")
        plan = plan_file(file, delete=options["delete"])
        data = data_of(plan) | {"delete": options["delete"]}
        if options["out"]:
            write_file(options["out"], f"{json.dumps(data, indent=2, ensure_ascii=False)}\n")
        if not options["traffic"]:
            self.say(lines_of(plan), data)
        else:
            if not options["json"]:  # before the forecast, which may take an hour
                self.stdout.show(lines_of(plan))
            self._forecast(plan, data)
        if not plan.is_empty:
            sys.exit(CHANGES)

    @property
    def _most(self) -> tuple[float | None, float | None]:
        """The maximum shares of callers and requests that a plan may newly reject; `None` = there is none."""
        return self._options["max_newly_rejected"], self._options["max_newly_rejected_requests"]

    def _forecast(self, plan: FilePlan, data: dict[str, Any]) -> None:
        """Show the effect of the plan on traffic, and fail if it exceeds a maximum, or if this is not known."""
        found = forecast_plan(plan, self._options)
        excess = [text for each in found.rules if each.is_known for text in each.excess(*self._most)]
        self.say(found.lines(), lambda: data | {"traffic": found.data() | {"excess": excess}})
        if self._most == (None, None):
            return
        wrong = [found.not_known()] if found.unknown else []
        wrong += ["This would newly reject too many:", *excess] if excess else []
        if wrong:
            raise CommandError(on_terminal(wrong))

    def run_apply(self) -> None:
        """Make the database equal to a file."""
        file, options = self._load(), self._options
        expected = self._agreed(file) if options["plan"] else None
        author = self._author()
        try:
            plan, version = apply_file(
                file,
                author=author,
                reason=options["reason"],
                delete=options["delete"],
                expected=expected,
                overwrite=options["overwrite"] or expected is not None,  # the plan has shown what is undone
            )
        except DatabaseError as error:
            raise CommandError(f"Nothing was changed: the database cannot be written now: {error}") from error
        if version is None:
            self.say(lines_of(plan), data_of(plan) | {"applied": None})
            return
        latest = storage.committed_version()
        if latest.epoch != version.epoch:  # in a restored database, the version has moved to a new epoch meanwhile
            version = latest
        self.say(
            [*lines_of(plan), f"Applied, as version {version.number}."], data_of(plan) | {"applied": version.number}
        )
        self.warn(cache.publish_problem())

    def _load(self) -> RulesFile:
        file = load(self._options["file"])
        for line in in_lines(file.name, file.warnings):
            self.warn(line)
        return file

    def _agreed(self, file: RulesFile) -> str:
        """Return the state that a stored plan was made from."""
        try:
            kept = json_from(Path(self._options["plan"]).read_text("utf-8"))
            digest, state, delete = kept["digest"], kept["state"], kept["delete"]
        except (ValueError, KeyError, TypeError) as error:
            raise CommandError(f"{self._options['plan']} is not a plan.") from error
        if digest != file.digest or delete is not self._options["delete"]:
            raise CommandError("The plan was made for another file, or with other options. Make the plan again.")
        return str(state)

    def _author(self) -> Any:
        name = self._options["author"]
        if not name:
            return None
        users = get_user_model()
        try:
            return users._default_manager.get_by_natural_key(name)
        except users.DoesNotExist as error:
            raise CommandError(f"There is no user {name}.") from error
