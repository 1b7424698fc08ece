"""Texts for callers are translated into each language; no translation is wrong.

Each folder of `locale/` is a language. What a caller reads is tried in German.
"""

from __future__ import annotations

import ast
import gettext
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from django.apps import apps
from django.test import Client, override_settings
from django.utils import translation
from django.utils.translation.template import templatize

import django_ratelimiter
from django_ratelimiter.headers import rejection_response
from django_ratelimiter.testing import RulesInForce, assert_limited

from .headers.test_fields import DENIED, NEVER, decision, results
from .headers.test_responses import get

PACKAGE = Path(django_ratelimiter.__file__).parent
LOCALE = PACKAGE / "locale"
PAGE = PACKAGE.parent / "docs/reference/models.md"

#: The folders of languages: "de", "zh_Hans".
LANGUAGES = sorted(path.parent.parent.name for path in LOCALE.glob("*/LC_MESSAGES/django.po"))

#: Where the texts stand. Migrations repeat those of the models.
SOURCES = [path for path in PACKAGE.glob("**/*.py") if path.parent.name != "migrations"]
TEMPLATES = list(PACKAGE.glob("templates/**/*.html"))

#: The modules and templates whose texts callers read.
FOR_CALLERS: Final = (
    *("headers/", "api/", "decorators/", "throttling.py", "gateway.py", "identity/", "templates/django_ratelimiter/"),
    *("engine/registry.py", "rules/formatting.py", "me.py", "templatetags/ratelimiter.py"),
)

#: How many texts a function of gettext takes.
TEXTS = {"gettext": 1, "ngettext": 2, "pgettext": 2, "npgettext": 3}

#: A call as it stands for a text of a template.
_TEXT: Final = re.compile(r"""u?('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")""")
_CALL: Final = re.compile(rf"\b(?P<name>n?p?gettext|_)\((?P<given>{_TEXT.pattern}(?:, *{_TEXT.pattern})*)")

#: What stands in a text for something else, or marks a part of it.
_PLACE: Final = re.compile(r"%\([a-z_]+\)[sdifr]|%[sdifr%]|\{[a-z_0-9]*\}|<[^<> ]+>")

#: A line of a source of texts, with the lines that continue it.
_FIELD: Final = re.compile(r'^(msgctxt|msgid|msgid_plural|msgstr(?:\[\d\])?) ((?:".*"\n?)+)', re.MULTILINE)

#: A language that a browser may ask for, and the folder that answers.
ASKED: Final = [
    ("de-AT", "de"),
    ("es", "es"),
    ("es-MX", "es"),
    ("fr", "fr"),
    ("fr-CA", "fr"),
    ("pt", "pt"),
    ("pt-br", "pt"),
    ("zh-hans", "zh_Hans"),
    ("zh-cn", "zh_Hans"),
]


class Entry(NamedTuple):
    """A text of a catalog's source. context: "" if none. plural: the English of many, "" if none."""

    context: str
    text: str
    plural: str
    forms: tuple[str, ...]


@cache
def entries(language: str) -> tuple[Entry, ...]:
    """All texts of a language, without the header."""
    source = (LOCALE / language / "LC_MESSAGES/django.po").read_text("utf-8")
    found = []
    for block in re.split(r"\n{2,}", source)[1:]:
        fields = {
            name: "".join(ast.literal_eval(line) for line in value.splitlines())
            for name, value in _FIELD.findall(block)
        }
        forms = tuple(value for name, value in fields.items() if name.startswith("msgstr"))
        found.append(Entry(fields.get("msgctxt", ""), fields["msgid"], fields.get("msgid_plural", ""), forms))
    return tuple(found)


def compiled(language: str) -> gettext.GNUTranslations:
    with (LOCALE / language / "LC_MESSAGES/django.mo").open("rb") as file:
        return gettext.GNUTranslations(file)


@cache
def keys(below: tuple[str, ...] = ("",)) -> set[tuple[str, str, str]]:
    """Return what these parts of the package translate: (context, text, plural)."""
    found = set()
    for name, given in texts(below):
        context, *rest = given if "p" in name.removesuffix("gettext") else ("", *given)
        found.add((context, rest[0], rest[1] if len(rest) > 1 else ""))
    return found


def texts(below: tuple[str, ...]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield what these parts translate: the function of gettext, and its arguments up to the last text."""
    for template in filter(lambda path: str(path.relative_to(PACKAGE)).startswith(below), TEMPLATES):
        for call in _CALL.finditer(templatize(template.read_text("utf-8"))):
            given = tuple(ast.literal_eval(text) for text in _TEXT.findall(call["given"]))
            name = "gettext" if call["name"] == "_" else call["name"]
            yield name, given[: TEXTS[name]]
    for path in filter(lambda path: str(path.relative_to(PACKAGE)).startswith(below), SOURCES):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))) if path.is_file() else ():
            function = getattr(node.func, "id", "") if isinstance(node, ast.Call) else ""
            name = "gettext" if function == "_" else re.sub("_(lazy|noop)$", "", function)
            if isinstance(node, ast.Call) and name in TEXTS and not isinstance(node.args[0], ast.Name | ast.Attribute):
                yield name, tuple(arg.value for arg in node.args if isinstance(arg, ast.Constant))[: TEXTS[name]]


def test_the_code_has_texts() -> None:
    assert len(keys()) > 400
    assert {("", "Try again", ""), ("after in", "%(count)d second", "%(count)d seconds")} <= keys()


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_catalog_has_all_that_callers_read(language: str) -> None:
    translated = {entry[:3] for entry in entries(language)}
    assert len(keys(FOR_CALLERS)) > 40
    assert sorted(keys(FOR_CALLERS) - translated) == []
    assert len(translated) == len(entries(language)), "a text is there twice"
    assert [entry for entry in entries(language) if not all(entry.forms)] == []


@pytest.mark.parametrize("text", ["View", "Filter", "This month"])
def test_a_word_that_the_admin_means_otherwise_has_a_context(text: str) -> None:
    """To view, the filters of a list, a date: Django has one translation for all apps, that of the first of them."""
    assert ("", text, "") not in keys()
    assert text in {known for context, known, _ in keys() if context}


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_text_is_uncertain_or_left_over(language: str) -> None:
    source = (LOCALE / language / "LC_MESSAGES/django.po").read_text("utf-8")
    assert re.findall("^#, .*fuzzy.*|^#~ .*", source, re.MULTILINE) == []
    assert sorted({entry[:3] for entry in entries(language)} - keys()) == []
    assert f'"Language: {language}\\n"' in source


@pytest.mark.parametrize("language", LANGUAGES)
def test_placeholders_and_spaces_at_the_ends_are_those_of_the_english(language: str) -> None:
    """Texts are put together. The first of several forms may spell its number out: "one rule", "%(rules)s rules"."""
    wrong = []
    for entry in entries(language):
        *first, last = (Counter(_PLACE.findall(form)) for form in entry.forms)
        english, many = (Counter(_PLACE.findall(text)) for text in (entry.text, entry.plural or entry.text))
        ends = {(form[0].isspace(), form[-1].isspace()) for form in (entry.text, *entry.forms)}
        if last != many or not all(form in (english, many) for form in first) or len(ends) > 1:
            wrong.append(entry)
    assert wrong == []


#: Words with two meanings: the English, the context of one of them, and a language that has two words for it.
TWO_MEANINGS: Final = [
    ("allowed", "caller", "fr"),
    ("Who", "who made a change", "zh_Hans"),
    ("Saved", "what was saved", "zh_Hans"),
    ("Time", "hour or day", "es"),
]


@pytest.mark.parametrize(("text", "context", "language"), TWO_MEANINGS)
def test_a_word_with_two_meanings_has_two_translations(text: str, context: str, language: str) -> None:
    catalog = compiled(language)
    assert (context, text, "") in keys()
    assert catalog.gettext(text) != catalog.pgettext(context, text)


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_names_of_models(language: str) -> None:
    app = apps.get_app_config("django_ratelimiter")
    names = [name for model in app.get_models() for name in (model._meta.verbose_name, model._meta.verbose_name_plural)]
    english = [str(name) for name in [app.verbose_name, *names]]
    with translation.override(translation.to_language(language)):
        assert not {str(name) for name in [app.verbose_name, *names]} & set(english)


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_compiled_catalog_is_that_of_the_source(language: str) -> None:
    """If not: `msgfmt --check-format -o django.mo django.po` in that folder."""
    count = int(compiled(language).info()["plural-forms"].partition("nplurals=")[2][0])
    assert {len(entry.forms) for entry in entries(language) if entry.plural} == {count}
    source = {}
    for entry in entries(language):
        text = f"{entry.context}\4{entry.text}" if entry.context else entry.text
        source |= {(text, number) if entry.plural else text: form for number, form in enumerate(entry.forms)}
    catalog: dict[Any, str] = dict(compiled(language)._catalog)  # type: ignore[attr-defined]
    catalog.pop("")
    assert catalog == source


def test_what_never_passes_and_what_cannot_be_checked() -> None:
    closed = decision(results(None, failure_policy="closed"), degraded=True)
    decisions = (decision(results(NEVER)), closed, decision(results(DENIED)))
    with translation.override("de"):
        never, away, title = (rejection_response(get("text/plain"), each).content.decode() for each in decisions)
    assert "Ein erneuter Versuch hilft nicht." in never
    assert "Vorübergehend nicht verfügbar" in away
    assert title.splitlines()[0] == "Zu viele Anfragen"


@pytest.mark.parametrize(("asked", "language"), [pair for pair in ASKED if pair[1] in LANGUAGES])
def test_the_callers_language_is_spoken(
    asked: str, language: str, client: Client, ratelimit_rules: RulesInForce, settings: Any
) -> None:
    ratelimit_rules({"slug": "all", "limits": ["1/minute"]})
    middleware = ["django.middleware.locale.LocaleMiddleware", *settings.MIDDLEWARE]
    title, detail = map(compiled(language).gettext, ("Too many requests", "You have sent more requests than allowed."))
    with translation.override("en-us"), override_settings(MIDDLEWARE=middleware):  # what it activates stays active
        headers = {"Accept": "text/html", "Accept-Language": f"{asked}, en;q=0.5"}
        page = assert_limited(client, "/hello/", headers=headers, after=1)
        problem = client.get("/hello/", headers=headers | {"Accept": "application/json"}).json()
    assert f'<html lang="{language[:2]}' in page.content.decode()
    assert f"<h1>{title}</h1>" in page.content.decode()
    assert {"Accept", "Accept-Language"} <= set(page["Vary"].split(", "))
    assert problem["title"] == title
    assert problem["detail"].startswith(detail)


def test_every_language_is_asked_for_and_the_page_names_it() -> None:
    assert set(LANGUAGES) <= {language for _, language in ASKED}
    assert [language for language in LANGUAGES if f"`{language}`" not in PAGE.read_text("utf-8")] == []
