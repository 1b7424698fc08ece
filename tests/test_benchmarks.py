"""The benchmark's tables and names, without measuring anything and without what it compares with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import instructions, registry, report
from benchmarks.__main__ import STAGES
from benchmarks.site.urls import LIMITERS, NAMES, entry_points
from benchmarks.stages import capacity

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs" / "explanation"
FLOOR, ONE, PEER = registry.FLOOR_NAME, "ours: engine.check, 1 rule", "limits: fixed window"

LOAD = {"server_us": 20.0, "script_us": 9.0, "calls": 1.0, "client_us": 50.0, "admitted": 1.0}
REMEMBERED = LOAD | {"calls": 0.0, "client_us": 1_000.0}
MACHINE = {"date": "2026-11-21", "machine": "A", "server": "B", "python": "3.11", "load": 0.1, "versions": {}}
RESULTS: dict[str, Any] = {
    "machine": MACHINE,
    "decisions": {
        "times": {
            FLOOR: {"allowed": {"us": 30.0, "ratio": 1.0}, "rejected": {"us": 30.0, "ratio": 1.0}},
            ONE: {"allowed": {"us": 27.0, "ratio": 0.9}},
        },
        "failed": {"DRF: AnonRateThrottle": "ImportError: No module named 'rest_framework'"},
    },
    "trips": {"trips": {ONE: 1.0}},
    "keys": {"bytes": {ONE: {"keys": 1.0, "once": 120.0, "full": 116.0}}},
    "exactness": {"broken": "It ended with code 1."},
    "instructions": {
        "rows": {"a view": 500.0, instructions.EVALSHA: 650.0, "ours: one rule": 650.0, "ours: three rules": 665.0}
    },
    "capacity": {"loads": {ONE: {"allowed": LOAD, "rejected": REMEMBERED}}},
}


def test_a_table_has_every_contestant_and_says_who_could_not_be_measured() -> None:
    text = report.decisions(RESULTS)
    assert f"| **{ONE}** | 27.0 | 0.90 | 1.00 | 120 | 116 | - | - |" in text
    assert "Not measured: DRF: AnonRateThrottle. ImportError: No module named 'rest_framework'" in text
    assert text.endswith("Not measured: It ended with code 1.")


def test_what_is_added_is_compared_with_an_evalsha_and_processors_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "| **ours: three rules** | 165 | 1.10 |" in report.summary(RESULTS)
    assert "| **ours: engine.check, 1 rule** | 50,000 | - | 20,000 | 1,000 |" in report.capacity(RESULTS)
    monkeypatch.setenv("PATH", "")
    said = report.summary({"instructions": instructions.measure()})
    assert said.endswith("valgrind was not found. On Debian: apt-get install valgrind")


def test_the_page_is_filled_again_and_again_and_its_prose_left_alone() -> None:
    page = (DOCS / report.PAGE).read_text("utf-8")
    named = [block for _, block, *_ in report.BLOCK.findall(page)]
    assert page.count("<!-- bench:") == page.count("<!-- end -->") == len(named)
    assert set(named) <= set(report.BLOCKS)
    filled = report.filled(page, RESULTS)
    assert report.filled(filled, RESULTS) == filled
    assert report.BLOCK.sub("", filled) == report.BLOCK.sub("", page)
    assert report.filled(page, {}) == page, "what was not measured keeps its table"


def test_every_name_is_that_of_a_function_a_limiter_or_a_view() -> None:
    makers = registry.MAKERS | registry.MAKERS_ON_CLUSTER
    for maker in makers.values():
        module, _, function = maker.partition(":")
        source = (ROOT / "benchmarks" / f"{module.replace('.', '/')}.py").read_text("utf-8")
        assert f"def {function}(" in source
    assert {*capacity.NAMES} <= {*makers}
    assert {*report.SUMMARY} <= {*instructions.ROWS}
    modules = {file.stem for file in (ROOT / "benchmarks" / "stages").glob("[!_]*.py")}
    assert {*STAGES} == modules | {"instructions"}
    for row in instructions.ROWS.values():
        assert row.limiter in LIMITERS
        assert row.path.strip("/") in (*NAMES, *entry_points())
        assert row.less in instructions.ROWS
