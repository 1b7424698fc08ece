"""Whatever staff sends to a page: it is answered, without a server error, and at little cost.

The cost is processor time of this thread, which what else runs on the machine hardly changes. Counting calls would miss
what patterns and copies of long texts take. An ordinary answer takes a tenth of MAX_SECONDS.
"""

from __future__ import annotations

import json
import logging
import os
import random
import re
from collections.abc import Callable, Iterator
from time import thread_time
from typing import Any, Final

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from django_ratelimiter.rules.files.rows import WrongFile
from django_ratelimiter.rules.files.texts import read
from tests.admin_pages import Page, fill, pages

from .pages import ADD_RULE, BrowserForm, rule_form, shown
from .test_hostile_texts import PARAMETERS
from .test_urls import addresses

pytestmark = [pytest.mark.django_db, pytest.mark.once]

#: Three times the two seconds that a request may take on an idle machine.
MAX_SECONDS: Final = 6.0

TEXTS: Final = (
    "a" * 200_000,
    "a " * 100_000,
    "a,\n" * 60_000,
    "a: b\n" * 40_000,
    "a=b\n" * 40_000,
    "user:" * 40_000,
    "header:a|" * 20_000,
    "X-RateLimit-Reference:" * 9_000,
    "curl x " + "-d a " * 40_000,
    "curl 'http://x/?" + "a" * 200_000 + "'",
    "A request was rejected by " + "a, " * 60_000,
    '{"a":' * 2_000 + "1" + "}" * 2_000,
    "[" * 100_000,
    '{"rule": "\\ud800", "reference": "\\ud800#\\ud800"}',
    "curl x -H $'A: \\ud800' -d $'{\"a\":\"\\ud800\"}'",
    "1" + "0" * 30,
    "9" * 5_000,
    "-1",
    "1e999999999",
    "NaN",
    "user:1" + "0" * 30,
    "id:1" + "0" * 30,
    "\x1b[2J\x9b::add-mask::a\r\n",
    "\u202e\ufeff\x7f\0",
)


def forms_of(page: str) -> Iterator[dict[str, str]]:
    """The fields of each form of a page, with the values that a browser would send; "" where it would send none."""
    for form in re.findall(r"<form\b.*?</form>", page, re.DOTALL):
        values = {name: value for name, (value, *_) in BrowserForm(form).sent.items()}
        names = {name for name in re.findall(r'\bname="([^"]+)"', form) if "__prefix__" not in name}
        yield {name: values.get(name, "") for name in sorted(names - {"csrfmiddlewaretoken"})}


@pytest.fixture
def draw(pytestconfig: pytest.Config) -> random.Random:
    return random.Random(getattr(pytestconfig.option, "randomly_seed", 0))


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Keep no record of each answer that is an error: it would hold request and body."""
    caplog.set_level(logging.CRITICAL, "django")


def answered(ask: Callable[..., Any], url: str, sent: Any) -> Any:
    """Return the response; it was made at little cost, and is no server error."""
    about = f"{url}: {repr(sent)[:500]}"
    began = thread_time()
    try:
        response = ask(url, sent)
    except Exception as error:
        raise AssertionError(about) from error
    took = thread_time() - began
    assert response.status_code < 500, about
    assert took < MAX_SECONDS, f"{took:.1f} s, {about}"
    return response


#: Of the fields of a form and the parameters of a page so many are tried one by one; another run tries others.
TRIED: Final = int(os.environ.get("TWIN_STEPS", "2_000")) // 500


def sendings(fields: dict[str, str], draw: random.Random) -> Iterator[dict[str, str]]:
    """Yield the fields with any text in one of them, for some of them, and in all of them."""
    for name in draw.sample([*fields], min(len(fields), TRIED)):
        yield {**fields, name: draw.choice(TEXTS)}
    yield {name: draw.choice(TEXTS)[: 1_000_000 // len(fields)] for name in fields}


def all_addresses() -> dict[str, str]:
    """Return the addresses of the admin's pages, those of one view once."""
    found = [page.url for page in pages()] + [Page(name, name).url for name in {*addresses(admin.site.get_urls())}]
    found += [Page("", "django_ratelimiter_usage_data", args=lambda: ["top"]).url]
    return {re.sub(r"\d+|\?.*", "", url): url for url in found if url}


def test_forms(admin_client: Client, admin_user: User, draw: random.Random) -> None:
    fill(admin_user)
    for url in all_addresses().values():
        page = admin_client.get(url)
        if page.status_code != 200 or not page["Content-Type"].startswith("text/html"):
            continue
        for form in forms_of(page.content.decode()):
            for sent in sendings(form, draw) if form else ():
                answered(admin_client.post, url, sent)


def test_parameters(admin_client: Client, admin_user: User, draw: random.Random) -> None:
    fill(admin_user)
    names = sorted(
        {*PARAMETERS, "reference", "leases", "is:user", "_forecast", "forecast-period", "mode", "limits__tier"}
    )
    for url in all_addresses().values():
        for sent in sendings(dict.fromkeys(draw.sample(names, TRIED), ""), draw):
            answered(admin_client.get, url.partition("?")[0], sent)


EXPLAIN, ADD_ASSIGNMENT = (reverse(f"admin:django_ratelimiter_{name}") for name in ("explain", "tierassignment_add"))


@pytest.mark.parametrize("url", [EXPLAIN, ADD_ASSIGNMENT])
def test_any_text_in_any_field(admin_client: Client, url: str) -> None:
    fields = {"pasted": ""} if url == EXPLAIN else {"user": "", "group": "", "tier": "", "partition": ""}
    for name in fields:
        for text in TEXTS:
            answered(admin_client.post, url, {**fields, name: text})


def test_a_form_says_how_many_limits_it_takes(admin_client: Client) -> None:
    page = answered(admin_client.post, ADD_RULE, {**rule_form(slug="new"), "limits-TOTAL_FORMS": "2000"})
    assert "Please submit at most 100 forms." in shown(page)


def test_a_description_has_an_end() -> None:
    with pytest.raises(WrongFile, match="description: Ensure this value has at most 65536 characters"):
        read(json.dumps({"rules": {"r": {"description": "x" * 65_537}}}), "r.json")
