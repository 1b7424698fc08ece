"""What the load test says of what it has seen."""

from __future__ import annotations

import pytest

from tests.soak import report
from tests.soak.processes import Held
from tests.soak.traffic import Traffic

BEFORE = Held(100_000, 20)


def traffic(*wrong: str) -> Traffic:
    found = Traffic((), 0, 0.0)
    found.answers.update({0: 3, 200: 5_000})
    found.wrong += wrong
    return found


def test_the_table_has_what_each_process_held() -> None:
    lines = report.table_of(60.0, traffic(), {"uvicorn": BEFORE}, {"uvicorn": Held(102_400, 21)}).splitlines()
    assert lines[0].endswith(", 60 minutes, 5,003 requests; answers by status: none: 3, 200: 5,000.")
    assert lines[-1] == "| uvicorn | 97.7 | 100.0 | 20 | 21 |"


def test_early_and_late_are_what_was_usual_in_a_quarter_of_the_time() -> None:
    grows = [report.Look(passed / 12, {"uvicorn": Held(100 * passed, 20 + passed % 2)}) for passed in range(12)]
    assert report.early_and_late(grows) == ({"uvicorn": Held(400, 21)}, {"uvicorn": Held(1_000, 21)})


@pytest.mark.parametrize(
    ("after", "said", "wrong", "fault"),
    [
        (Held(109_096, 24), "", (), None),
        (Held(109_097, 24), "", (), "uvicorn held 100,000 KiB, and 109,097 KiB at the end."),
        (Held(90_000, 25), "", (), "uvicorn had 20 descriptors, and 25 at the end."),
        (BEFORE, "", ("500 for /hello/", "502 for /hello/"), "2 wrong answers, the first: 500 for /hello/."),
        (BEFORE, "Traceback (most recent call last):", (), "A process has printed an error:"),
    ],
)
def test_what_fails(after: Held, said: str, wrong: tuple[str, ...], fault: str | None) -> None:
    found = report.failures_of(traffic(*wrong), {"uvicorn": BEFORE}, {"uvicorn": after}, said)
    assert [each.splitlines()[0] for each in found] == ([fault] if fault else [])
