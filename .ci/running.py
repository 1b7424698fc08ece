"""Runs stages in lanes: those of a lane one after the other, and the lanes side by side.

The output of each program goes to a file in .cache/logs; the summary at the end shows what failed.
"""

from __future__ import annotations

import os
import re
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from pythons import pair_of
from stages import ROOT, Checks, Command, Stage, Suite

#: Maximum number of failures of a suite that run again. If more fail, something is broken.
FEW = 5
#: Maximum length of each failure, of which the end is shown, and number of failures. The logs have the rest.
LINES, SHOWN = 60, 10


class Failure(NamedTuple):
    """A test or a check that failed. command: runs it again; text: all of its output."""

    stage: Stage
    name: str
    command: str
    text: str


@dataclass
class Outcome:
    """The results of the stages. skipped, run: names of tests. unavailable: what this machine does not have."""

    passed: int = 0
    failures: list[Failure] = field(default_factory=list)
    unsteady: list[Failure] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    unavailable: list[str] = field(default_factory=list)
    skipped: set[str] = field(default_factory=set)
    run: set[str] = field(default_factory=set)


class Runner:
    """Runs stages and adds their results to an Outcome. folder: for logs and reports."""

    def __init__(self, outcome: Outcome, folder: Path) -> None:
        self._outcome, self._folder = outcome, folder
        self._noting = threading.Lock()
        self._is_interrupted = False
        folder.mkdir(parents=True, exist_ok=True)

    def run(self, *lanes: Sequence[Stage]) -> None:
        """Run all stages; then, when nothing else runs, tests that failed beside others once more."""
        with ThreadPoolExecutor(len(lanes)) as threads:
            try:
                for lane in [threads.submit(self._run_lane, lane) for lane in lanes]:
                    lane.result()
            except BaseException:
                self._is_interrupted = True  # the terminal has interrupted the programs as well
                raise
        for suite, failures in self._few():
            for failure in failures if self._prepare(suite) else ():
                if self._passes_alone(suite, failure.name):
                    self._outcome.failures.remove(failure)
                    self._outcome.unsteady.append(failure)
                    self._outcome.passed += 1

    def _run_lane(self, stages: Sequence[Stage]) -> None:
        for stage in stages:
            if self._is_interrupted:
                return
            print(f"== {stage.name}", flush=True)
            began = time.monotonic()
            passed, failures = self._check(stage) if isinstance(stage, Checks) else self._test(stage)
            with self._noting:
                self._outcome.passed += passed
                self._outcome.failures += failures
            said = f"{passed} passed, {len(failures)} failed"
            print(f"-- {'FAILED' if failures else 'passed'} in {clock(time.monotonic() - began)}: {stage.name}: {said}")

    def _check(self, stage: Checks) -> tuple[int, list[Failure]]:
        logs = {name: self._folder / f"{slug(name)}.log" for name in stage.commands}
        with ThreadPoolExecutor(len(logs)) as threads:
            codes = dict(zip(logs, threads.map(execute, stage.commands.values(), logs.values()), strict=True))
        failed = [name for name, code in codes.items() if code]
        texts = {name: logs[name].read_text(errors="replace") for name in failed}
        return len(codes) - len(failed), [
            Failure(stage, name, str(stage.commands[name]), texts[name]) for name in failed
        ]

    def _test(self, suite: Suite) -> tuple[int, list[Failure]]:
        log, report = self._folder / f"{slug(suite.name)}.log", self._folder / f"{slug(suite.name)}.xml"
        report.unlink(missing_ok=True)
        code = 0
        for each in (*suite.preparing, suite.command(report)):
            if code := execute(each, log):
                break
        tests = dict(results_in(report))
        failures = [
            Failure(suite, name, str(suite.command_alone(name)), text)
            for name, (result, text) in tests.items()
            if result == "failed"
        ]
        if code and not failures:
            failures = [Failure(suite, "(the run itself)", str(each), log.read_text(errors="replace"))]
        names = {
            result: {name for name, test in tests.items() if test[0] == result} for result in ("passed", "skipped")
        }
        with self._noting:
            self._outcome.skipped |= names["skipped"]
            self._outcome.run |= tests.keys() - names["skipped"]
        print(f"   {suite.name} ran on {pair_of(suite.python)}", flush=True)
        return len(names["passed"]), failures

    def _few(self) -> list[tuple[Suite, list[Failure]]]:
        """Return the suites with few failures, all of them of single tests, and these.

        Thousands of tests run four at once on two processors, and start and stop servers: now and then one of them gets
        too little time. To fail the run because of that would waste the other 30,000 results; to hide it would be
        worse. So it runs once more, alone and with the same seed. If it passes then, it is listed as unsteady.
        """
        found: dict[str, tuple[Suite, list[Failure]]] = {}
        for failure in self._outcome.failures:
            if isinstance(failure.stage, Suite):
                found.setdefault(failure.stage.name, (failure.stage, []))[1].append(failure)
        return [
            (suite, failures)
            for suite, failures in found.values()
            if len(failures) <= FEW and all("::" in failure.name for failure in failures)
        ]

    def _prepare(self, suite: Suite) -> bool:
        """Make the environment of a suite again: a later stage may have changed it."""
        return not any(execute(each, self._folder / "preparing-again.log") for each in suite.preparing)

    def _passes_alone(self, suite: Suite, name: str) -> bool:
        """Return whether a test that failed beside others passes alone, in its own process."""
        log = self._folder / f"alone-{slug(name)[-150:]}.log"
        report = log.with_suffix(".xml")
        report.unlink(missing_ok=True)
        code = execute(suite.command_alone(name, report), log)
        return code == 0 and "passed" in {result for _, (result, _) in results_in(report)}


def execute(command: Command, log: Path) -> int:
    """Run a program and return its exit code."""
    with log.open("wb") as output:  # not a pipe: a server that a test left running would keep a pipe open
        return subprocess.run(
            command.words,
            cwd=ROOT,
            env={**os.environ, **command.environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        ).returncode


def results_in(report: Path) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield the tests of a report by the name with which pytest runs them again: the result, and the text of a failure.

    None if pytest was killed before writing it. Of several results (a fixture fails at its end), the failure counts.
    """
    try:
        cases = ElementTree.parse(report).iter("testcase")
    except (FileNotFoundError, ElementTree.ParseError):
        return
    texts: dict[str, str] = {}
    for case in cases:
        name = name_of(case)
        kinds = {element.tag: element.text or element.get("message") or "" for element in case}
        if wrong := kinds.keys() & {"failure", "error"}:
            texts[name] = texts.get(name, "") + "\n".join(kinds[tag] for tag in sorted(wrong))
            yield name, ("failed", texts[name])
        elif name not in texts:
            yield name, ("skipped" if "skipped" in kinds else "passed", "")


def name_of(case: ElementTree.Element) -> str:
    """Return `tests/test_a.py::TestB::test_c[d]`: pytest writes the class after the module's dotted name."""
    file, name = case.get("file", ""), case.get("name", "")
    dotted = file.removesuffix(".py").replace("/", ".")
    if name == dotted:
        return file  # a module that could not be imported
    inner = case.get("classname", "").removeprefix(dotted).strip(".")
    return "::".join(filter(None, (file, inner.replace(".", "::"), name)))


def sum_up(outcome: Outcome, seconds: float, *, strict: bool) -> int:
    """Print what failed and the verdict, which a CI service always shows. The exit code is 0 only if nothing failed."""
    for failure in (*outcome.unsteady, *outcome.failures)[-SHOWN:]:
        print(f"\n---- {failure.name} ({failure.stage.name})")
        print("\n".join(failure.text.rstrip().splitlines()[-LINES:]))
    for name in outcome.unavailable:
        print(f"not on this machine, and not run: {name}")
    for name in outcome.left_out:
        print(f"left out: {name}")
    for title, failures in (
        ("unsteady: failed beside others, passed alone", outcome.unsteady),
        ("failed", outcome.failures),
    ):
        if failures:
            print(f"\n{title}")
        for failure in failures:
            preparing = failure.stage.preparing if isinstance(failure.stage, Suite) else ()
            print(
                f"  - {failure.name} ({failure.stage.name})\n    {' && '.join([*map(str, preparing), failure.command])}"
            )
    left_out = len(outcome.left_out) if strict else 0
    unsteady = f" ({len(outcome.unsteady)} unsteady)" if outcome.unsteady else ""
    missing = f", {left_out} left out that must run" if left_out else ""
    print(f"\n{outcome.passed} passed{unsteady}, {len(outcome.failures)} failed{missing} in {clock(seconds)}")
    return 1 if outcome.failures or left_out else 0


def clock(seconds: float) -> str:
    """Return `4:05`, minutes and seconds."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def slug(name: str) -> str:
    """Return a name that is valid for a file."""
    return re.sub(r"[^\w.]+", "-", name).strip("-")
