"""The two kinds of stages: checks that run side by side, and a run of the test suite."""

from __future__ import annotations

import os
import random
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORKERS = max(2, min(4, (os.cpu_count() or 2) + 1))  # one more than processors, because tests wait for servers

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

    def command(self, report: Path) -> Command:
        """Return the command that runs all of it, and writes a report."""
        # -n0: else tests/workers.py would decide.
        many = (f"-n{self.workers}", "--dist=worksteal") if self.workers else ("-n0",)
        return self._pytest(*many, "-q", "--durations=10", *_reporting(report), *self.options)

    def command_alone(self, test: str, report: Path | None = None) -> Command:
        """Return the command that runs only one of its tests, in the same environment."""
        return self._pytest(*(("-q", *_reporting(report)) if report else ()), test)

    def _pytest(self, *options: str) -> Command:
        words = (str(self.python), "-m", "pytest", *self.config, f"--randomly-seed={SEED}", *options)
        return Command(words, self.environment)


def _reporting(report: Path) -> tuple[str, ...]:
    # With this family, a report has the file of each test, which is a part of its name.
    return (f"--junitxml={report}", "-o", "junit_family=xunit1")


Stage = Checks | Suite
