"""What callers read, the admin, the usage reports and the command are translated into German, all of it."""

from __future__ import annotations

import ast
import gettext
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from django.apps import apps
from django.test import Client, override_settings
from django.utils import translation
from django.utils.translation.template import templatize

import django_ratelimiter
from django_ratelimiter.engine import Limit
from django_ratelimiter.headers import refusal
from django_ratelimiter.rules.formatting import limit_in_words
from django_ratelimiter.rules.ruleset import LimitRecord
from django_ratelimiter.testing import RulesInForce, assert_limited

from .headers.test_fields import DENIED, NEVER, decision, results
from .headers.test_responses import get

PACKAGE = Path(django_ratelimiter.__file__).parent
CATALOG = PACKAGE / "locale/de/LC_MESSAGES/django"

#: Where the texts stand. Migrations repeat those of the models.
SOURCES = [path for path in PACKAGE.glob("**/*.py") if path.parent.name != "migrations"]
TEMPLATES = list(PACKAGE.glob("templates/**/*.html"))

#: How many texts a function of gettext takes.
TEXTS = {"gettext": 1, "ngettext": 2, "pgettext": 2, "npgettext": 3}

#: A call as it stands for a text of a template.
_TEXT: Final = re.compile(r"""u?('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")""")
_CALL: Final = re.compile(rf"\b(?P<name>n?p?gettext)\((?P<given>{_TEXT.pattern}(?:, *{_TEXT.pattern})*)")

#: What a German reads as it is.
THE_SAME = (
    *("GCRA", "View", "Route", "Version", "Server", "Problem", "Scope", "Body", "%s ms", "Client %s"),
    "%(what)s: %(requests)s (%(share)s), %(callers)s (%(of_callers)s).",
)


def german() -> gettext.GNUTranslations:
    with CATALOG.with_suffix(".mo").open("rb") as file:
        return gettext.GNUTranslations(file)


def texts() -> Iterator[tuple[str, tuple[str, ...]]]:
    """What the code translates: (function of gettext, what it is given up to the last text)."""
    for template in TEMPLATES:
        for call in _CALL.finditer(templatize(template.read_text("utf-8"))):
            given = tuple(ast.literal_eval(text) for text in _TEXT.findall(call["given"]))
            yield call["name"], given[: TEXTS[call["name"]]]
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))) if path.is_file() else ():
            function = getattr(node.func, "id", "") if isinstance(node, ast.Call) else ""
            name = "gettext" if function == "_" else re.sub("_(lazy|noop)$", "", function)
            if isinstance(node, ast.Call) and name in TEXTS and not isinstance(node.args[0], ast.Name | ast.Attribute):
                yield name, tuple(arg.value for arg in node.args if isinstance(arg, ast.Constant))[: TEXTS[name]]


def test_every_text_is_translated() -> None:
    catalog, found = german(), list(texts())
    assert len(found) > 400
    assert ("gettext", ("Try again",)) in found
    for name, given in found:
        counts = [(1,), (2,)] if name.startswith("n") else [()]
        for count in counts:
            assert getattr(catalog, name)(*given, *count) not in given or given[0] in THE_SAME


def test_the_names_of_models() -> None:
    app = apps.get_app_config("django_ratelimiter")
    names = [name for model in app.get_models() for name in (model._meta.verbose_name, model._meta.verbose_name_plural)]
    english = [str(name) for name in [app.verbose_name, *names]]
    with translation.override("de"):
        assert not {str(name) for name in [app.verbose_name, *names]} & set(english)


def test_the_compiled_catalog_is_that_of_the_source() -> None:
    """If not: `msgfmt --check -o django.mo django.po` in that folder."""
    source = CATALOG.with_suffix(".po").read_text("utf-8")
    entries = {}
    for context, text, plurals in re.findall(
        r'^(?:msgctxt "(.+)"\n)?msgid "(.+)"\n(?:msgid_plural ".*"\n)?((?:msgstr.*\n)+)', source, re.MULTILINE
    ):
        for number, translated in re.findall(r'^msgstr(?:\[(\d)\])? "(.+)"$', plurals, re.MULTILINE):
            entry = f"{context}\4{text}" if context else text
            entries[(entry, int(number)) if number else entry] = translated
    compiled: dict[Any, str] = dict(german()._catalog)  # type: ignore[attr-defined]
    compiled.pop("")
    assert compiled == entries


@pytest.mark.parametrize(
    ("wait", "says"),
    [
        (1.0, "in 1 Sekunde erneut"),
        (90.0, "in 90 Sekunden erneut"),
        (300.0, "in 5 Minuten erneut"),
        (86_400.0, "in 24 Stunden erneut"),
        (864_000.0, "in 10 Tagen erneut"),
    ],
)
def test_a_wait(wait: float, says: str) -> None:
    with translation.override("de"):
        page = refusal(get("text/html"), decision(results((False, 0, wait, wait)))).content.decode()
    assert says in page


@pytest.mark.parametrize(
    ("limit", "says"),
    [
        (Limit(1_000, 60, burst=2_000, algorithm="token_bucket"), "1.000 pro Minute, Token-Bucket, Burst 2.000"),
        (Limit(5, 0.25), "5 pro 0,25 Sekunden, gleitendes Fenster"),
        (Limit(5, 7_200, algorithm="concurrency"), "5 zugleich, jede für höchstens 2 Stunden"),
    ],
)
def test_a_limit(limit: Limit, says: str) -> None:
    with translation.override("de"):
        assert limit_in_words(LimitRecord(limit)) == says


def test_what_never_passes_and_what_cannot_be_checked() -> None:
    closed = decision(results(None, failure_policy="closed"), degraded=True)
    with translation.override("de"):
        assert (
            "Ein erneuter Versuch hilft nicht." in refusal(get("text/plain"), decision(results(NEVER))).content.decode()
        )
        assert "Vorübergehend nicht verfügbar" in refusal(get("text/plain"), closed).content.decode()
        title = refusal(get("text/plain"), decision(results(DENIED))).content.decode().splitlines()[0]
    assert title == "Zu viele Anfragen"


def test_the_callers_language_is_spoken(client: Client, ratelimit_rules: RulesInForce, settings: Any) -> None:
    ratelimit_rules({"slug": "all", "limits": ["1/minute"]})
    middleware = ["django.middleware.locale.LocaleMiddleware", *settings.MIDDLEWARE]
    with translation.override("en-us"), override_settings(MIDDLEWARE=middleware):  # what it activates stays active
        headers = {"Accept": "text/html", "Accept-Language": "de-AT, en;q=0.5"}
        page = assert_limited(client, "/hello/", headers=headers, after=1)
    assert '<html lang="de' in page.content.decode()
    assert "<h1>Zu viele Anfragen</h1>" in page.content.decode()
    assert {"Accept", "Accept-Language"} <= set(page["Vary"].split(", "))
