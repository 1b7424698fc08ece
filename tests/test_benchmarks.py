"""The benchmark's tables and names, without measuring anything and without what it compares with."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from benchmarks import instructions, registry, sites
from benchmarks.__main__ import STAGES
from benchmarks.report import aims, growth, pages, tables, verdict
from benchmarks.site.urls import LIMITERS, NAMES, entry_points
from benchmarks.stages import capacity, latency

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs" / "explanation"
FLOOR, ONE, PEER = registry.FLOOR_NAME, "ours: engine.check, 1 rule", "limits: fixed window"

LOAD = {"server_us": 20.0, "script_us": 9.0, "calls": 1.0, "client_us": 50.0, "admitted": 1.0}
TIMES = {"p50": 500.0, "p99": 900.0, "added_p50": 100.0, "added_p99": 200.0}
SITE = {"turns": TIMES, "row": TIMES, "refused": TIMES | {"added_p50": 110.0}, "per_second": 2_000.0}
CHEAP = SITE | {"turns": TIMES | {"added_p50": 90.0, "added_p99": 300.0}}
RESULTS: dict[str, Any] = {
    "machine": {
        "date": "2026-11-21",
        "machine": "one",
        "server": "Valkey 9",
        "python": "3.11",
        "load": 0.1,
        "versions": {},
    },
    "decisions": {
        "pinned": {
            "allowed": {
                FLOOR: {"us": 30.0, "ratio": 1.0},
                ONE: {"us": 27.0, "ratio": 0.9},
                PEER: {"us": 20, "ratio": 0.7},
            },
            "denied": {FLOOR: {"us": 30.0, "ratio": 1.0}},
        },
        "failed": {"DRF: AnonRateThrottle": "ImportError: No module named 'rest_framework'"},
    },
    "trips": {"allowed": {ONE: 1.0}, "denied": {ONE: 1.0}},
    "keys": {
        "bytes": {ONE: {"keys": 1.0, "once": 120.0, "full": 116.0}, PEER: {"keys": 1.0, "once": 90.0, "full": 1.0}}
    },
    "crowd": {"admitted": {ONE: [100, 100], PEER: [100, 320]}},
    "clocks": {"admitted": {"+30": {PEER: {"most": 100}}, "-30": {PEER: {"most": 200}}}},
    "latency": {"broken": "It ended with code 1."},
    "web": {
        "sites": {
            "no limiter, only EVALSHA": CHEAP,
            "ours, 3 rules": SITE,
            "django-ratelimit": SITE | {"turns": TIMES | {"added_p50": 80.0}},
            "limits, fixed window": CHEAP,
        }
    },
    "loop": {"sites": {"ours, 3 rules": {"turns": TIMES, "per_second": 1.0}}},
    "instructions": {
        "rows": {"a view": 500.0, instructions.EVALSHA: 650.0, "ours: one rule": 650.0, "ours: three rules": 665.0}
    },
    "capacity": {
        "loads": {growth.ONE: {"allowed": LOAD, "denied": LOAD}, growth.THREE: {"allowed": LOAD, "denied": LOAD}}
    },
}


def test_a_table_has_every_contestant_and_says_who_could_not_be_measured() -> None:
    text = tables.decisions(RESULTS)
    assert f"| **{ONE}** | 27.0 | 0.90 | - | - |" in text
    assert text.endswith("Not measured: DRF: AnonRateThrottle. ImportError: No module named 'rest_framework'")
    assert tables.latency(RESULTS).endswith("Not measured: It ended with code 1.")


def test_stages_of_other_runs_have_their_own_date() -> None:
    latest = RESULTS["machine"]["date"]
    stages = {"web": RESULTS["web"] | {"run": latest}, "keys": RESULTS["keys"] | {"run": "the day before"}}
    assert tables.caption(RESULTS | stages).endswith(". Measured on the day before: keys.")
    assert "before" not in tables.caption(RESULTS | {"web": stages["web"]})


def test_a_run_on_a_busy_machine_says_so() -> None:
    assert "busy" not in tables.caption(RESULTS)
    busy = RESULTS | {"machine": RESULTS["machine"] | {"load": 3.0}}
    assert tables.caption(busy).startswith("**The machine was busy with other work")


def test_the_most_that_were_admitted_is_told() -> None:
    assert f"| {PEER} | 320 | 200 |" in tables.exactness(RESULTS)
    assert f"| **{ONE}** | 100 | - |" in tables.exactness(RESULTS)


def test_the_aims_are_compared_with_what_was_measured() -> None:
    text = aims.aims(RESULTS)
    assert "| instructions, one rule, to one EVALSHA through redis-py | 1.00 | 1.00 | 1.00 | aim |" in text
    assert "| the same, three rules | 1.10 | 1.08 | 1.10 | must |" in text
    assert "| @ratelimit with a rate, to django-ratelimit | 0.60 | 0.60 | - |  |" in text
    assert "| engine.check, 1 rule, to the floor | 0.72 | 0.70 | 0.90 | **no** |" in text
    assert "| engine.check, 3 rules, to the floor | 0.88 | 0.85 | - |  |" in text


def test_every_name_that_the_reports_look_for_is_measured() -> None:
    assert {*verdict.MADE_FOR_DJANGO, *verdict.OTHERS} == {*sites.PEERS, sites.REST_LIMITED}
    everything = {"instructions": {"rows": {name: 500.0 + number for number, name in enumerate(instructions.ROWS)}}}
    assert all(aim.found is not None for aim in aims.of_instructions(everything))


def test_what_is_added_is_compared_with_an_evalsha() -> None:
    assert "| **ours: three rules** | 165 | 1.10 |" in tables.instructions(RESULTS)


def test_without_valgrind_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    found = instructions.measure()
    assert tables.instructions({"instructions": found}).endswith(
        "valgrind was not found. On Debian: apt-get install valgrind"
    )


def test_who_is_ahead_is_named() -> None:
    on_loop = {"sites": {"ours, 3 rules": SITE, "limits, fixed window": CHEAP}}
    decision, django, other, loop, key = verdict.ahead(RESULTS | {"loop": on_loop}).splitlines()
    assert decision.startswith(f"- {PEER}: 20.0 µs for a decision (allowed)")
    assert django == "- django-ratelimit, one limit: adds 80 µs to a view at p50; ours with 3 rules: 100 µs."
    assert other == "- limits, fixed window, one limit: adds 90 µs to a view at p50; ours with 3 rules: 100 µs."
    assert loop.startswith("- limits, fixed window, one limit: adds 90 µs to a view under uvicorn at p50; ours")
    assert key == f"- {PEER}: 90 bytes for a caller after one request; ours: 120."


def test_the_plan_counts_servers_at_half_of_their_processor() -> None:
    text = growth.plan(RESULTS)
    assert "| 1 rule, exact | 1,000,000 | 20.0 | 40 |" in text
    assert "| 3 rules in three shards, exact | 3,000,000 | 20.0 | 120 |" in text
    assert "| 1 rule for everybody, approximate | 2,000 | 20.0 | 1 |" in text


@pytest.mark.parametrize("name", pages.PAGES)
def test_a_page_is_filled_again_and_again_and_its_prose_left_alone(name: str) -> None:
    page = (DOCS / name).read_text("utf-8")
    named = [block for _, block, _ in pages.BLOCK.findall(page)]
    assert page.count("<!-- bench:") == page.count("<!-- end -->") == len(named)
    assert set(named) <= set(pages.BLOCKS)
    filled = pages.filled(page, RESULTS)
    assert pages.filled(filled, RESULTS) == filled
    assert pages.BLOCK.sub("", filled) == pages.BLOCK.sub("", page)
    assert pages.filled(page, {}).count("there are no results of") == len(set(named) - {"aims"})  # its rows stay empty


def test_every_contestant_has_a_module_and_every_name_is_one() -> None:
    makers = registry.MAKERS | registry.MAKERS_ON_CLUSTER
    for maker in makers.values():
        module, _, function = maker.partition(":")
        source = (ROOT / "benchmarks" / f"{module.replace('.', '/')}.py").read_text("utf-8")
        assert f"def {function}(" in source
    assert set(latency.NAMES) | set(capacity.NAMES) <= set(makers)
    assert set(capacity.NAMES) >= {growth.ONE, growth.THREE, growth.PATH}
    assert {name + growth.NODE for name in (growth.ONE, growth.THREE)} == set(registry.ON_CLUSTER)
    assert set(STAGES) == {file.stem for file in (ROOT / "benchmarks" / "stages").glob("[!_]*.py")}


@pytest.mark.parametrize("them", [sites.SITES, sites.SITES_ON_LOOP, instructions.ROWS])
def test_every_site_has_a_limiter_a_view_and_a_baseline(them: dict[str, Any]) -> None:
    for site in them.values():
        assert site.limiter in LIMITERS
        assert site.path.strip("/") in (*NAMES, "in-a-thread", "asks", *entry_points())
        assert site.less in them


def test_callers_in_turn_come_again_and_belong_to_one_site_and_way() -> None:
    everybody: set[int] = set()
    for number, site in enumerate(sites.SITES.values()):
        for way in site.ways:
            callers = list(islice(sites.callers_of(number, site, way, 30), 60))
            assert len(set(callers)) == (3 if way == sites.ROW else min(site.callers, 30))
            assert everybody.isdisjoint(callers)
            everybody.update(callers)
