"""Read pytest's reports: what became of each test, under the name that pytest takes to run it again."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from xml.etree import ElementTree


class Result(Enum):
    """What became of a test. Of several results (a test that passes, whose fixture fails at its end) the last holds."""

    PASSED = 0
    SKIPPED = 1
    FAILED = 2


@dataclass
class Test:
    """A test of a report.

    message: the first line of its failure. text: the whole of it, with the traceback. seconds: it and its fixtures.
    """

    name: str
    result: Result = Result.PASSED
    seconds: float = 0.0
    message: str = ""
    text: str = ""


#: `-o junit_family=xunit1` adds the file of each test, without which its name cannot be put together again.
OPTIONS = ("-o", "junit_family=xunit1")


def read_report(report: Path) -> dict[str, Test]:
    """Return the tests of a report by name; none if pytest has not lived to write it."""
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
    """Return `tests/test_a.py::TestB::test_c[d]`: pytest writes the class behind the module's dotted name."""
    file, name = case.get("file", ""), case.get("name", "")
    dotted = file.removesuffix(".py").replace("/", ".")
    if name == dotted:
        return file  # a module that could not be imported
    inner = case.get("classname", "").removeprefix(dotted).strip(".")
    return "::".join(filter(None, (file, inner.replace(".", "::"), name)))
