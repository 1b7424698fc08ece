"""Reads pytest's reports: the result of each test, by the name with which pytest runs it again."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from xml.etree import ElementTree


class Result(Enum):
    """The result of a test. Of several (the test passes, but a fixture fails at its end) the last one counts."""

    PASSED = 0
    SKIPPED = 1
    FAILED = 2


@dataclass
class Test:
    """A test of a report.

    message: the first line of its failure. text: all of it, with the traceback. seconds: including its fixtures.
    """

    name: str
    result: Result = Result.PASSED
    seconds: float = 0.0
    message: str = ""
    text: str = ""


#: `-o junit_family=xunit1` adds the file of each test, which is needed to compose its name.
OPTIONS = ("-o", "junit_family=xunit1")


def read_report(report: Path) -> dict[str, Test]:
    """Return the tests in a report by name; empty if pytest was killed before writing it."""
    tests: dict[str, Test] = {}
    try:
        cases = ElementTree.parse(report).iter("testcase")
    except (FileNotFoundError, ElementTree.ParseError):
        return tests
    for case in cases:
        name = _name_of(case)
        test = tests.setdefault(name, Test(name))
        test.seconds += float(case.get("time", 0))
        for element in case:
            if element.tag in ("failure", "error"):
                test.result = Result.FAILED
                test.message = test.message or (element.get("message") or "").strip().partition("\n")[0]
                test.text += f"{element.text or element.get('message') or ''}\n"
            elif element.tag == "skipped" and test.result is Result.PASSED:
                test.result = Result.SKIPPED
    return tests


def _name_of(case: ElementTree.Element) -> str:
    """Return `tests/test_a.py::TestB::test_c[d]`: pytest writes the class after the module's dotted name."""
    file, name = case.get("file", ""), case.get("name", "")
    dotted = file.removesuffix(".py").replace("/", ".")
    if name == dotted:
        return file  # a module that could not be imported
    inner = case.get("classname", "").removeprefix(dotted).strip(".")
    return "::".join(filter(None, (file, inner.replace(".", "::"), name)))
