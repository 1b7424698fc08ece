"""Fields of GraphQL are counted as the docs show it, with each of the two libraries that is installed."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any, cast

import pytest
from django.test import Client, override_settings
from django.urls import path

from ..making import MakeRule
from ..pages import DOCS, PAGES, blocks, section

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("clock")]

[FIELD] = blocks(section(PAGES["docs/howto/decorator.md"], "## GraphQL and batches"), "python")
VIEW = (DOCS / "howto/graphql_view.py").read_text("utf-8")
#: As the page says in sentences.
GRAPHENE_VIEW = VIEW
for told, instead in {
    "strawberry.django.views": "graphene_django.views",
    "parse_http_body": "parse_body",
    "each.query": "self.get_graphql_params(request, each)[0]",
    "self.request,": "request,",
}.items():
    GRAPHENE_VIEW = GRAPHENE_VIEW.replace(told, instead)
GRAPHENE = """
import graphene
from django_ratelimiter import limiter
from django_ratelimiter.identity import identify, partition

class Query(graphene.ObjectType):
    version = graphene.String(default_value="1")

class Login(graphene.Mutation):
    class Arguments:
        name = password = graphene.String(required=True)

    ok = graphene.Boolean()

    def mutate(self, info, name, password):
        with limiter.slot("login-field", max_wait=0, partition=partition(identify(info.context), ["ip"])):
            return Login(ok=(name, password) == ("ann", "right"))

class Mutation(graphene.ObjectType):
    login = Login.Field()

schema = graphene.Schema(query=Query, mutation=Mutation)
"""
GUESS = 'login(name: "ann", password: "%s")'


@pytest.fixture(params=["strawberry", "graphene_django"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a library; the page's views are at one/ and, for batches, at batch/."""
    pytest.importorskip(request.param, reason=f"{request.param} is not installed")
    is_strawberry, recipe = request.param == "strawberry", cast(Any, ModuleType("recipe"))
    monkeypatch.setitem(sys.modules, "recipe", recipe)  # strawberry looks up the annotations there
    for block in (FIELD, VIEW) if is_strawberry else (GRAPHENE, GRAPHENE_VIEW):
        exec(block, recipe.__dict__)
    if is_strawberry:
        batches = pytest.importorskip("strawberry.schema.config").StrawberryConfig(
            batching_config={"max_operations": 10}
        )
        schema = recipe.strawberry.Schema(query=recipe.Query, mutation=recipe.Mutation, config=batches)
        one = batch = recipe.LimitedView.as_view(schema=schema, multipart_uploads_enabled=True)
    else:
        one, batch = (recipe.LimitedView.as_view(schema=recipe.schema, batch=batch) for batch in (False, True))
    recipe.urlpatterns = [path("one/", one), path("batch/", batch)]
    with override_settings(ROOT_URLCONF=recipe):
        yield request.param


def answers(*bodies: Any) -> list[Any]:
    """What the page's views answer to these bodies, each of which may be a batch."""
    client = Client()
    return [
        client.post("/batch/" if isinstance(body, list) else "/one/", body, content_type="application/json")
        for body in bodies
    ]


def guesses(library: str, count: int, fragment: bool = False) -> dict[str, str]:
    rest = "" if library == "strawberry" else "{ ok }"
    fields = " ".join(f"a{number}: {GUESS % number} {rest}" for number in range(count))
    return {
        "query": f"mutation {{ ...F }} fragment F on Mutation {{ {fields} }}"
        if fragment
        else f"mutation {{ {fields} }}"
    }


def test_each_call_of_a_field_is_counted(library: str, make_rule: MakeRule) -> None:
    make_rule("fields", quota=3, scope="login-field", partition_by=["ip"])
    first, second = answers(guesses(library, 5), [guesses(library, 1)])
    assert (first.status_code, len(first.json()["errors"])) == (200, 2)
    assert [value is not None for value in first.json()["data"].values()] == [True, True, True, False, False]
    assert "Rejected by fields" in second.json()[0]["errors"][0]["message"]


def test_a_request_costs_what_its_aliases_call(library: str, make_rule: MakeRule) -> None:
    make_rule("logins", quota=5, scope="logins", partition_by=["ip"])
    plain, inside = guesses(library, 3), guesses(library, 3, fragment=True)
    found = answers(plain, {"query": "{ version }"}, inside, [guesses(library, 1), inside], guesses(library, 2))
    assert [answer.status_code for answer in found] == [200, 200, 429, 429, 200]
    assert found[0]["RateLimit"].startswith('"logins";r=2;')
    assert found[2]["Content-Type"] == "application/problem+json"


def test_no_other_form_of_a_body_evades_it(library: str, make_rule: MakeRule) -> None:
    make_rule("logins", quota=5, scope="logins", partition_by=["ip"])
    many, client = guesses(library, 6), Client()
    forms = client.post("/one/", {"operations": json.dumps(many), "map": "{}", **many})
    in_url = client.get("/one/", many)
    deep = client.post("/one/", {"query": "{ version" + "{a" * 9_000 + "}" * 9_001}, "application/json")
    endless = client.post("/one/", {"query": "mutation { ...F } fragment F on Mutation { ...F }"}, "application/json")
    assert [forms.status_code, in_url.status_code] == [429, 429]
    assert "nested too deeply" in deep.content.decode() or deep.status_code == 400
    assert endless.status_code == (200 if library == "strawberry" else 400)
    assert "spread fragment" in endless.content.decode().lower()
