"""The two kinds of stages and their results: checks that run side by side, and a run of the test suite.

Stages run side by side, if there is room: while the tests of one wait for servers, those of another run.
"""

from __future__ import annotations

import os
import random
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import reports

ROOT = Path(__file__).resolve().parent.parent
WORKERS = max(2, min(4, (os.cpu_count() or 2) + 1))  # one more than processors, because tests wait for servers

#: Maximum number of processes of all stages: those of the whole suite, and one for the other stages in turn.
ROOM = max(WORKERS + 1, min(8, (os.cpu_count() or 2) + 2))

#: The seed of random tests, in all stages. With the same seed, a test repeats its values.
SEED = random.SystemRandom().randrange(2**32)


@dataclass(frozen=True)
class Command:
    """A program with its arguments, run in the repository's root, and its environment variables."""

    words: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return it as a shell command."""
        variables = [f"{name}={shlex.quote(value)}" for name, value in sorted(self.environment.items())]
        return " ".join([*variables, shlex.join(word.removeprefix(f"{ROOT}/") for word in self.words)])


def command(*words: object, **environment: str) -> Command:
    return Command(tuple(str(word) for word in words), environment)


@dataclass(frozen=True)
class Checks:
    """Commands by name; each passes or fails as a whole. They run side by side."""

    name: str
    commands: Mapping[str, Command]

    @property
    def processes(self) -> int:
        """They are several, but short, and mostly wait for the disk. So all count as one."""
        return 1

    @property
    def prepared(self) -> None:
        """They change no environment."""


@dataclass(frozen=True)
class Suite:
    """A run of the test suite. preparing: commands that make its environment; workers: 0 = all tests in one process."""

    name: str
    python: Path
    options: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    preparing: tuple[Command, ...] = ()
    workers: int = WORKERS
    config: tuple[str, ...] = ()

    @property
    def processes(self) -> int:
        """The number of processes that run its tests."""
        return self.workers or 1

    @property
    def prepared(self) -> Path | None:
        """The Python whose environment is changed before it; None = it is not changed."""
        return self.python if self.preparing else None

    def command(self, report: Path) -> Command:
        """Return the command that runs all of it, and writes a report."""
        # -u: unbuffered output, to read its progress at any time.
        # -n0: else tests/workers.py would decide.
        many = (f"-n{self.workers}", "--dist=worksteal") if self.workers else ("-n0",)
        return self._pytest("-u", *many, "-q", "--durations=8", *_reporting(report), *self.options)

    def command_alone(self, test: str, report: Path | None = None) -> Command:
        """Return the command that runs only one of its tests, in the same environment."""
        return self._pytest("", *(("-q", *_reporting(report)) if report else ()), test)

    def failure(self, name: str, message: str, text: str, command: Command | None = None) -> Failure:
        """Return the failure of one of its tests, or of a command. Later stages may have changed its environment."""
        preparing = " && ".join(map(str, self.preparing))
        return Failure(self.name, name, str(command or self.command_alone(name)), message, text, preparing)

    def _pytest(self, flag: str, *options: str) -> Command:
        words = (str(self.python), flag, "-m", "pytest", *self.config, f"--randomly-seed={SEED}", *options)
        return Command(tuple(word for word in words if word), self.environment)


def _reporting(report: Path) -> tuple[str, ...]:
    return (f"--junitxml={report}", *reports.OPTIONS)


Stage = Checks | Suite


@dataclass(frozen=True)
class Failure:
    """A test or a check that failed.

    command: runs it again; preparing: commands to run before that; text: all of its output.
    """

    stage: str
    name: str
    command: str
    message: str = ""
    text: str = ""
    preparing: str = ""


@dataclass
class Outcome:
    """The results of the stages so far.

    `skipped` and `run` contain names of tests, `pairs` the versions that the suite ran on, `seconds` the time of each
    test by its stage and its name.
    """

    passed: int = 0
    failed: int = 0
    failures: list[Failure] = field(default_factory=list)
    unsteady: list[Failure] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    unavailable: list[str] = field(default_factory=list)
    skipped: set[str] = field(default_factory=set)
    run: set[str] = field(default_factory=set)
    pairs: list[str] = field(default_factory=list)
    seconds: dict[tuple[str, str], float] = field(default_factory=dict)
