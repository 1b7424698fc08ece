"""Run the stages one after the other, and show how far they are.

What the programs print goes to a file each in .cache/logs; what matters of it is shown by the summary, at the end.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import reports
from progress import Progress
from pythons import pair_of
from reports import Result, Test
from stages import ROOT, Checks, Command, Failure, Outcome, Suite

#: So many failures are looked at again. Where more fail, something is broken, and time is better spent otherwise.
FEW = 5

DOTS = re.compile(r"^([.sxXFE]+) *(?:\[ *(\d+)%\])?$", re.MULTILINE)


class Runner:
    """Runs stages and adds what came of each to an Outcome. folder: where logs and reports are written."""

    def __init__(self, outcome: Outcome, progress: Progress, folder: Path) -> None:
        self._outcome, self._progress, self._folder = outcome, progress, folder
        folder.mkdir(parents=True, exist_ok=True)

    def run(self, stage: Checks | Suite) -> None:
        """Run a stage."""
        self._progress.begin(stage.name)
        if isinstance(stage, Checks):
            self._check(stage)
        else:
            self._test(stage)

    def _check(self, stage: Checks) -> None:
        logs = {name: self._folder / f"{slug(name)}.log" for name in stage.commands}
        codes = run_together(
            [(command, logs[name]) for name, command in stage.commands.items()],
            lambda: self._progress.tick(stage.name),
        )
        failed = [name for name, code in zip(stage.commands, codes, strict=True) if code]
        for name in failed:
            command, text = str(stage.commands[name]), logs[name].read_text(errors="replace")
            self._outcome.failures.append(Failure(stage.name, name, command, text=text))
        self._outcome.failed += len(failed)
        self._outcome.passed += len(codes) - len(failed)
        self._progress.end(stage.name, not failed, ", ".join(failed or stage.commands))

    def _test(self, suite: Suite) -> None:
        log, report = self._folder / f"{slug(suite.name)}.log", self._folder / f"{slug(suite.name)}.xml"
        report.unlink(missing_ok=True)
        code = 0
        for command in (*suite.preparing, suite.command(report)):
            [code] = run_together([(command, log)], lambda: self._progress.tick(suite.name, so_far(log)))
            if code:
                break
        tests = reports.read_report(report)
        failed = [test for test in tests.values() if test.result is Result.FAILED]
        failures = [suite.failure(test.name, test.message, test.text) for test in failed]
        if failures and code == 1 and len(failures) <= FEW:
            unsteady = [failure for failure in failures if self._passes_alone(suite, failure)]
            failures = [failure for failure in failures if failure not in unsteady]
            self._outcome.unsteady += unsteady
            for failure in unsteady:
                tests[failure.name].result = Result.PASSED
        elif code and not failures:
            text = log.read_text(errors="replace")
            failures = [suite.failure("(the run itself)", f"exit code {code}", text, command)]
        self._note(suite, tests, failures)

    def _passes_alone(self, suite: Suite, failure: Failure) -> bool:
        """Whether a test that failed beside others passes by itself, in a process of its own.

        Thousands of tests run three at once on two processors, and start and stop servers: now and then one of them
        is starved of time. To fail the run for it makes the other 30,000 results worthless, and to hide it is worse.
        So it runs once more, with nobody beside it and with the same seed (what depends on drawn values fails again).
        If it passes then, it is named as unsteady. Failing twice fails the run.
        """
        if "::" not in failure.name:
            return False  # a module that could not be imported: what other tests it has is not known
        name = slug(failure.name)[-150:]
        log, report = self._folder / f"alone-{name}.log", self._folder / f"alone-{name}.xml"
        report.unlink(missing_ok=True)
        command = suite.command_alone(failure.name, report)
        [code] = run_together([(command, log)], lambda: self._progress.tick(suite.name, ", once more, alone"))
        results = {test.result for test in reports.read_report(report).values()}
        return code == 0 and Result.PASSED in results

    def _note(self, suite: Suite, tests: dict[str, Test], failures: list[Failure]) -> None:
        """Count test by test."""
        outcome = self._outcome
        outcome.failures += failures
        passed = sum(test.result is Result.PASSED for test in tests.values())
        outcome.skipped |= {test.name for test in tests.values() if test.result is Result.SKIPPED}
        outcome.run |= {test.name for test in tests.values() if test.result is not Result.SKIPPED}
        outcome.seconds |= {(suite.name, test.name): test.seconds for test in tests.values()}
        outcome.passed += passed
        outcome.failed += len(failures)
        counts = f"{passed} passed, {len(failures)} failed"
        if tests:
            outcome.pairs.append(f"{pair_of(suite.python)} ({suite.name.removeprefix('tests: ')}): {counts}")
        self._progress.end(suite.name, not failures, counts)


def run_together(commands: list[tuple[Command, Path]], tick: Callable[[], None]) -> list[int]:
    """Run commands side by side, each with a log, until all have ended; their exit codes."""
    running: list[subprocess.Popen[bytes]] = []
    try:
        for command, log in commands:
            with log.open("wb") as output:
                running.append(_start(command, output.fileno()))
        while any(process.poll() is None for process in running):
            tick()
            _wait(running, seconds=1.0)
    except BaseException:  # an interrupt, which the terminal has sent to them as well
        for process in running:
            _end(process)
        raise
    return [process.returncode for process in running]


def _start(command: Command, output: int) -> subprocess.Popen[bytes]:
    environment = {**os.environ, **command.environment}
    # Into a file: a server that a test left behind would hold a pipe open.
    return subprocess.Popen(
        command.words, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
    )


def _wait(running: list[subprocess.Popen[bytes]], *, seconds: float) -> None:
    """Wait until the first of those that still run has ended, or for some time."""
    first = next((process for process in running if process.poll() is None), None)
    if first is not None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            first.wait(timeout=seconds)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Let a program end that was interrupted, and end it if it does not."""
    try:
        process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        process.terminate()


def so_far(log: Path) -> str:
    """Return how far pytest is, as its dots say."""
    dots, _, _tracebacks = log.read_text(errors="replace").partition("\n=====")
    lines = DOTS.findall(dots)
    percent = next((percent for _, percent in reversed(lines) if percent), "")
    failed = sum(dots.count("F") + dots.count("E") for dots, _ in lines)
    return (f", {percent} % of the tests" if percent else "") + (f", {failed} failed so far" if failed else "")


def slug(name: str) -> str:
    """Return a name that a file can have."""
    return re.sub(r"[^\w.]+", "-", name).strip("-")
