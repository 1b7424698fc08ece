"""Responses that the documentation shows are those that a site sends: the same fields in the same order, and texts."""

from __future__ import annotations

import json
import re

import pytest
from django.test import Client

from .making import MakeRule
from .pages import PAGES, blocks

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls("tests.inspection.urls")]


def sample(page: str, begins: str) -> str:
    """The block of code that begins so."""
    [text] = [each for each in blocks(PAGES[f"docs/{page}"], r"\w*") if each.startswith(begins)]
    return text


def without_figures(text: str) -> str:
    """Without what differs from one second, or one site's key, to the next."""
    return re.sub(r"#[\w-]{8}|(?<=t=)\d+|(?<=in )\d+|(?<=: )\d{2,}", "…", text)


def responses(make_rule: MakeRule, accept: str) -> list[str]:
    """The first and the last of four, as curl shows them."""
    options = {"window_seconds": 60}
    make_rule("per-address", quota=3, limit=options, algorithm="sliding_window_log", partition_by=["ip"])
    client = Client(headers={"Accept": accept})
    found = []
    for _ in range(4):
        response = client.get("/no-such-page/")
        fields = "".join(f"{name}: {value}\n" for name, value in response.items())
        found.append(f"HTTP/1.1 {response.status_code} {response.reason_phrase}\n{fields}\n{response.content.decode()}")
    return found


def test_those_of_the_quickstart(make_rule: MakeRule) -> None:
    [pattern] = re.findall(r'grep -E "(.*)"', PAGES["docs/quickstart.md"])
    first, *_, last = responses(make_rule, "text/plain")
    for sent, begins in ((first, "HTTP/1.1 404"), (last, "HTTP/1.1 429")):
        head = without_figures(sent).partition("\n\n")[0].splitlines()
        shown = without_figures(sample("quickstart.md", begins)).splitlines()
        assert [line for line in head if re.search(pattern, line)] == shown
    text = without_figures(last).partition("\n\n")[2]
    assert text == without_figures(sample("quickstart.md", "Too many requests"))


def test_the_problem_document(make_rule: MakeRule) -> None:
    found = json.loads(responses(make_rule, "application/json")[-1].partition("\n\n")[2])
    shown = json.loads(sample("reference/models.md", '{\n  "type": "https://iana'))
    assert without_figures(str(found)) == without_figures(str(shown))


def test_the_body_of_rest_framework(make_rule: MakeRule, people: None) -> None:
    make_rule("per-user", quota=1, partition_by=["user"])
    client = Client(headers={"Authorization": "Name ann", "X-Name": "ann"})
    client.get("/api/")
    found = f"{client.get('/api/').content.decode()}\n"
    assert without_figures(found) == without_figures(sample("reference/models.md", '{"detail"'))
