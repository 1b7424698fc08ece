"""Outputs and errors of subcommands: files, pipes whose reader has ended, terminals that a text cannot control."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from datetime import date
from decimal import Decimal
from typing import Any, Final, TypeVar

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, OutputWrapper
from django.db import DatabaseError
from django.db.models import Model
from django.template.defaultfilters import pluralize

from ..conf import without_secrets
from ..exceptions import EngineUnavailable, WrongRedis, told_safely
from ..forecast.logs.formats import WrongFormat
from ..inspection.caller import UnknownCaller
from ..inspection.question import QuestionError
from ..rules.files.rows import WrongFile
from ..rules.files.texts import LibraryMissing
from ..rules.records import RuleRecord
from ..rules.stored.history.back import NotApplied
from ..values.references import Reference
from ..values.terminal import on_terminal

T = TypeVar("T")

#: The exit code in shells of a program that SIGPIPE has ended: 128 + SIGPIPE.
EXIT_CODE: Final = 141
#: Characters of a line of progress, and of its bar.
_WIDTH: Final = 78
_BAR: Final = 20

#: Maximum seconds to wait for a connection to Redis, and seconds between two attempts.
WAIT_SECONDS: Final = 2.0
PAUSE_SECONDS: Final = 0.05

#: Errors whose text says what is wrong.
_IN_WORDS: Final = (NotApplied, UnknownCaller, WrongFormat, WrongRedis, LibraryMissing)

_clock, _sleep = time.monotonic, time.sleep


def write_file(name: str, text: str, *, is_new: bool = False) -> None:
    """Write a text into a file. Raise OSError if it cannot be written; is_new: or if the file exists."""
    data = text.encode()  # before the file is touched
    with open(name, "xb" if is_new else "wb") as file:
        file.write(data)


@contextmanager
def quiet_pipes(*outputs: Any) -> Iterator[None]:
    """End the command with EXIT_CODE, and without a traceback, if nothing reads these outputs any more."""
    try:
        yield
        for output in outputs:
            output.flush()
    except BrokenPipeError:
        try:
            sys.stdout.flush()
        except BrokenPipeError:  # nor may the last flush of the interpreter report it
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(EXIT_CODE) from None


class Terminal(OutputWrapper):
    """An output of a command on which only line breaks act. Styles are passed as `style_func`, not within a text."""

    def __init__(self, output: Any) -> None:
        super().__init__(output)
        self._output = output

    def write(self, msg: str = "", style_func: Any = None, ending: str | None = None) -> None:  # type: ignore[override]
        self._output.write(on_terminal(msg.split("\n")), style_func, ending)

    def show(self, lines: Iterable[str]) -> None:
        """Write lines."""
        self.write(on_terminal(lines))


def encoded(value: Any) -> Any:
    """Return a report, or a part of one, as plain data: a rule is its slug, a row its columns, a time ISO 8601."""
    if isinstance(value, RuleRecord | Reference):
        return str(value)
    if isinstance(value, Model) or is_dataclass(value) or hasattr(value, "_fields"):
        return {name: encoded(getattr(value, name)) for name in _members(value)}
    if isinstance(value, Mapping):
        return {name: encoded(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [encoded(each) for each in value]
    if isinstance(value, Decimal):
        return f"{value.normalize():f}"
    return value.isoformat() if isinstance(value, date) else value


def _members(report: Any) -> tuple[str, ...]:
    """Return the names of the members: those in MEMBERS, which may be properties, or all fields."""
    if isinstance(report, Model):
        return tuple(each.attname for each in report._meta.concrete_fields)
    named: tuple[str, ...] | None = getattr(report, "MEMBERS", None) or getattr(report, "_fields", None)
    return named or tuple(each.name for each in fields(report))


class Progress:
    """Shows how far a command is: each second on one line of a terminal, else on a new line each ten seconds."""

    def __init__(self, output: Terminal) -> None:
        self._output = output
        self._pause = 1 if output.isatty() else 10
        self._next_at = _clock() + 1
        self._is_drawn = False

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._is_drawn and self._output.isatty():
            self._output.write(" " * _WIDTH, ending="\r")

    def __call__(self, describe: Callable[[], tuple[float, str]]) -> None:
        """Show it if it is time. describe: returns the share from 0 to 1, 0 = not known, and a text."""
        if (now := _clock()) < self._next_at:
            return
        self._next_at = now + self._pause
        self._is_drawn = True
        share, text = describe()
        if not self._output.isatty():
            self._output.write(text, str)
        else:
            bar = f"[{'#' * int(_BAR * share):.<{_BAR}}] " if share else ""
            self._output.write(f"{bar}{text}".ljust(_WIDTH), str, ending="\r")
        self._output.flush()


class SayingCommand(BaseCommand):
    """A command whose subcommands say something as text, or with --json as one JSON document."""

    _options: dict[str, Any]
    _has_document = False
    stdout: Terminal
    stderr: Terminal

    @contextmanager
    def telling_errors(self) -> Iterator[None]:
        """Raise CommandError instead of an error that the subcommand does not explain itself.

        With --json, the error is the JSON document, unless another one is written already.
        """
        try:
            yield
        except Exception as error:
            text = in_words(error)
            if not text:
                raise
            if self._options["json"] and not self._has_document:
                self.say((), {"error": text})
            raise CommandError(text) from error

    def say(self, parts: Iterable[str], data: Any) -> None:
        """Write the text, or the data. data: or a function that returns it."""
        if self._options["json"]:
            self.stdout.write(json.dumps(encoded(data() if callable(data) else data), indent=2, ensure_ascii=False))
            self._has_document = True
        else:
            self.stdout.show(parts)

    def warn(self, text: str) -> None:
        """Write a warning, if there is one."""
        if text:
            self.stderr.write(text, self.style.WARNING)


def in_words(error: Exception) -> str:
    """Return what an error means to operators; empty = it is an error of the program."""
    if isinstance(error, ImproperlyConfigured):
        return without_secrets(told_safely(error))
    if isinstance(error, DatabaseError):
        return f"The database cannot be reached now: {error}"
    if isinstance(error, EngineUnavailable):
        return f"Redis cannot be reached now: {error}"
    if isinstance(error, QuestionError):
        return f"{error.field}: {error}"
    if isinstance(error, WrongFile):  # each fault on its own line, for programs
        return f"{counted(len(error.faults), 'fault')}:\n{error}"
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}." if error.filename and error.strerror else str(error)
    return str(error) if isinstance(error, (CommandError, *_IN_WORDS)) else ""


def counted(number: int, name: str, endings: str = "s") -> str:
    """Return "1 row" or "2 rows". endings: see Django's filter `pluralize`."""
    return f"{number} {name}{pluralize(number, endings)}"


def once_connected(ask: Callable[[], T], is_answered: Callable[[T], bool]) -> T:
    """Return the result of `ask`, which is called again for a while if Redis has not answered.

    The first call starts a connection, and gives up after DEADLINE_MS. is_answered: whether Redis has answered. What
    `ask` raises after that while is raised: EngineUnavailable.
    """
    until = _clock() + WAIT_SECONDS
    while True:
        try:
            if is_answered(found := ask()) or _clock() >= until:
                return found
        except EngineUnavailable:
            if _clock() >= until:
                raise
        _sleep(PAUSE_SECONDS)
