"""What is not ASCII: a request is explained with the same text that a server makes of the bytes that are sent."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from django_ratelimiter.explain import Question, explain
from tests.entry_points.conftest import MakeRule, make_rule

from .test_explain import asked

__all__ = ["make_rule"]

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls("tests.inspection.urls")]


def as_read(text: str) -> str:
    """Return the text of a header field or a query as WSGI and ASGI servers hand it over."""
    return text.encode().decode("latin-1")


@pytest.mark.parametrize("org", ["Müller", "\N{EURO SIGN}5", "\N{GRINNING FACE}"])
def test_a_header_field_is_counted_as_it_was_explained(make_rule: MakeRule, client: Client, org: str) -> None:
    make_rule("org", quota=1, partition_by=["header:X-Org"])
    question = asked(headers=(("X-Org", org),))
    assert explain(question).response.allowed
    client.get("/hello/", headers={"X-Org": as_read(org)}, REMOTE_ADDR="203.0.113.7")
    assert not explain(question).response.allowed


def test_a_cookie_is_read(make_rule: MakeRule) -> None:
    make_rule("session", partition_by=["session"])
    assert explain(asked(headers=(("Cookie", "price=5 \N{EURO SIGN}"),))).identities == {"session": None}


def tag_of(request: Any) -> Any:
    return request.GET.get("tag")


def test_a_query_is_read(make_rule: MakeRule, settings: Any) -> None:
    settings.RATELIMITER = {**settings.RATELIMITER, "IDENTITIES": {"tag": f"{__name__}.tag_of"}}
    make_rule("tag", partition_by=["tag"])
    assert explain(asked("/hello/?tag=\N{EURO SIGN}")).identities == {"tag": "\N{EURO SIGN}"}


def test_bytes_of_a_shell_that_are_no_text_are_sent_as_they_are(make_rule: MakeRule) -> None:
    make_rule("org", partition_by=["header:X-Org"])
    question = Question(method="POST", path="/hello/", headers=(("X-Org", "\udcff"),), body="\udcff")
    assert explain(question).identities == {"header:X-Org": "\xff"}
