"""The end of the output, which a CI service always shows: tracebacks, names, commands to run again, counts."""

from __future__ import annotations

from durations import clock
from stages import Failure, Outcome

#: Maximum length of each failure, of which the end is shown, and number of failures. The logs have the rest.
LINES = 60
SHOWN = 10

#: Number of longest tests that are listed.
LONGEST = 10


def sum_up(outcome: Outcome, seconds: float, *, strict: bool) -> int:
    """Print the results; the last line is the verdict. The exit code is 0 only if nothing failed."""
    print("\n== summary")
    _print_in_full(outcome)
    for pair in outcome.pairs:
        print(f"ran on {pair}")
    for name in outcome.unavailable:
        print(f"not on this machine, and not run: {name}")
    for name in outcome.left_out:
        print(f"left out: {name}")
    _print_longest(outcome)
    if outcome.unsteady:
        print("\nunsteady: failed beside others, passed alone")
        _print_names(outcome.unsteady)
    if outcome.failures:
        print("\nfailed")
        _print_names(outcome.failures)
    left_out = len(outcome.left_out) if strict else 0
    unsteady = f" ({len(outcome.unsteady)} unsteady)" if outcome.unsteady else ""
    missing = f", {left_out} left out that must run" if left_out else ""
    print(f"\n{outcome.passed} passed{unsteady}, {outcome.failed} failed{missing}", end="")
    print(f" in {seconds:.0f} s ({clock(seconds)})")
    return 1 if outcome.failed or left_out else 0


def _print_in_full(outcome: Outcome) -> None:
    """Print the output of what failed; tests that failed twice come last."""
    for failure in (*outcome.unsteady, *outcome.failures)[-SHOWN:]:
        print(f"\n---- {failure.name} ({failure.stage})")
        lines = failure.text.rstrip().splitlines()
        if len(lines) > LINES:
            print(f"[the last {LINES} of {len(lines)} lines]")
        print("\n".join(lines[-LINES:]), end="\n\n")


def _print_longest(outcome: Outcome) -> None:
    """Print where to start if the run takes too long."""
    longest = sorted(outcome.seconds.items(), key=lambda item: -item[1])[:LONGEST]
    if longest:
        print(f"\nthe longest {len(longest)} of {len(outcome.seconds)} test runs")
    for (stage, name), seconds in longest:
        print(f"{seconds:6.1f} s  {name} ({stage.removeprefix('tests: ')})")


def _print_names(failures: list[Failure]) -> None:
    """Print each with the command that runs it again, stage by stage."""
    for stage, preparing in dict.fromkeys((failure.stage, failure.preparing) for failure in failures):
        print(f"  in {stage}")
        if preparing:
            print(f"    once, for all of them: {preparing}")
        for failure in failures:
            if failure.stage == stage:
                print(f"  - {failure.name}\n    {failure.message}\n    {failure.command}")
