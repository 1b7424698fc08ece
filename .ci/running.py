"""Runs the stages side by side, as many as there is room for, and shows their progress.

The output of each program goes to a file in .cache/logs; the summary at the end shows the important parts.
"""

from __future__ import annotations

import re
import threading
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import NamedTuple

import reports
from programs import run_together
from progress import Progress
from pythons import pair_of
from reports import Result, Test
from stages import ROOM, Checks, Failure, Outcome, Stage, Suite

#: Maximum number of failures that run again. If more fail, something is broken.
FEW = 5

DOTS = re.compile(r"^([.sxXFE]+) *(?:\[ *(\d+)%\])?$", re.MULTILINE)


class Doubtful(NamedTuple):
    """A run of the suite, and its tests that failed while other stages ran."""

    suite: Suite
    tests: dict[str, Test]
    failures: list[Failure]


class Runner:
    """Runs stages and adds their results to an Outcome. folder: for logs and reports."""

    def __init__(self, outcome: Outcome, progress: Progress, folder: Path) -> None:
        self._outcome, self._progress, self._folder = outcome, progress, folder
        self._noting = threading.Lock()
        self._interrupted = threading.Event()
        self._doubtful: list[Doubtful] = []
        folder.mkdir(parents=True, exist_ok=True)

    def run(self, *stages: Stage) -> None:
        """Run stages, each as soon as there is room; then run failed tests once more."""
        waiting, running = list(stages), dict[Future[None], Stage]()
        with ThreadPoolExecutor(len(stages)) as threads:
            try:
                while waiting or running:
                    for stage in list(waiting):
                        if has_room(stage, list(running.values())):
                            waiting.remove(stage)
                            self._progress.begin(stage.name)
                            running[threads.submit(self._run, stage)] = stage
                    for ended in wait(running, timeout=1.0, return_when=FIRST_COMPLETED).done:
                        running.pop(ended)
                        ended.result()
                    self._progress.tick()
            except BaseException:
                self._interrupted.set()
                raise
        for doubtful in self._doubtful:
            self._run_again(doubtful)

    def _run(self, stage: Stage) -> None:
        if isinstance(stage, Checks):
            self._check(stage)
        else:
            self._test(stage)

    def _check(self, stage: Checks) -> None:
        logs = {name: self._folder / f"{slug(name)}.log" for name in stage.commands}
        codes = run_together([(command, logs[name]) for name, command in stage.commands.items()], self._tick)
        failed = [name for name, code in zip(stage.commands, codes, strict=True) if code]
        with self._noting:
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
            [code] = run_together([(command, log)], lambda: self._tick(suite.name, so_far(log)))
            if code:
                break
        tests = reports.read_report(report)
        failed = [test for test in tests.values() if test.result is Result.FAILED]
        failures = [suite.failure(test.name, test.message, test.text) for test in failed]
        if failures and code == 1 and len(failures) <= FEW:
            with self._noting:
                self._doubtful.append(Doubtful(suite, tests, failures))
            self._progress.end(suite.name, None, f"{len(failures)} failed, and run once more at the end, alone")
            return
        if code and not failures:
            text = log.read_text(errors="replace")
            failures = [suite.failure("(the run itself)", f"exit code {code}", text, command)]
        self._note(suite, tests, failures)

    def _run_again(self, doubtful: Doubtful) -> None:
        """Run tests that failed beside other stages once more, when nothing else runs.

        Thousands of tests run four at once on two processors, and start and stop servers: now and then one of them gets
        too little time. To fail the run because of that would waste the other 30,000 results; to hide it would be
        worse. So it runs once more, alone and with the same seed (failures that depend on random values are repeated).
        If it passes then, it is listed as unsteady. If it fails twice, the run fails.
        """
        suite, tests, failures = doubtful
        self._progress.begin(suite.name)
        for command in suite.preparing:  # a later stage may have changed its environment
            run_together([(command, self._folder / "preparing-again.log")], self._tick)
        unsteady = [failure for failure in failures if self._passes_alone(suite, failure)]
        self._outcome.unsteady += unsteady
        for failure in unsteady:
            tests[failure.name].result = Result.PASSED
        self._note(suite, tests, [failure for failure in failures if failure not in unsteady])

    def _passes_alone(self, suite: Suite, failure: Failure) -> bool:
        """Return whether a test that failed beside others passes alone, in its own process."""
        if "::" not in failure.name:
            return False  # a module that could not be imported: its other tests are not known
        name = slug(failure.name)[-150:]
        log, report = self._folder / f"alone-{name}.log", self._folder / f"alone-{name}.xml"
        report.unlink(missing_ok=True)
        command = suite.command_alone(failure.name, report)
        [code] = run_together([(command, log)], self._progress.tick)
        results = {test.result for test in reports.read_report(report).values()}
        return code == 0 and Result.PASSED in results

    def _note(self, suite: Suite, tests: dict[str, Test], failures: list[Failure]) -> None:
        """Count the tests' results."""
        outcome, ran_on = self._outcome, pair_of(suite.python)
        passed = sum(test.result is Result.PASSED for test in tests.values())
        counts = f"{passed} passed, {len(failures)} failed"
        with self._noting:
            outcome.failures += failures
            outcome.skipped |= {test.name for test in tests.values() if test.result is Result.SKIPPED}
            outcome.run |= {test.name for test in tests.values() if test.result is not Result.SKIPPED}
            outcome.seconds |= {(suite.name, test.name): test.seconds for test in tests.values()}
            outcome.passed += passed
            outcome.failed += len(failures)
            if tests:
                outcome.pairs.append(f"{ran_on} ({suite.name.removeprefix('tests: ')}): {counts}")
        self._progress.end(suite.name, not failures, counts)

    def _tick(self, name: str = "", detail: str = "") -> None:
        """Record the progress of a stage; raise if the run was interrupted, which ends its programs."""
        if self._interrupted.is_set():
            raise KeyboardInterrupt
        if name:
            self._progress.tell(name, detail)


def has_room(stage: Stage, running: list[Stage]) -> bool:
    """Return whether a stage can run beside these: few processes, and no changes to each other's environment."""
    own = stage.prepared
    if own is not None and own in [each.prepared for each in running]:
        return False
    return not running or sum(each.processes for each in (stage, *running)) <= ROOM


def so_far(log: Path) -> str:
    """Return pytest's progress, from the dots in its log."""
    dots, _, _tracebacks = log.read_text(errors="replace").partition("\n=====")
    lines = DOTS.findall(dots)
    percent = next((percent for _, percent in reversed(lines) if percent), "")
    failed = sum(dots.count("F") + dots.count("E") for dots, _ in lines)
    return (f", {percent} % of the tests" if percent else "") + (f", {failed} failed so far" if failed else "")


def slug(name: str) -> str:
    """Return a name that is valid for a file."""
    return re.sub(r"[^\w.]+", "-", name).strip("-")
