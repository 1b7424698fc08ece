"""The docs say what the code does: tables, links, examples."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import json
import re
import unittest
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import django
import pytest
from django.test import Client, RequestFactory, override_settings

from django_ratelimiter import checks, conf, signals
from django_ratelimiter.conf import values
from django_ratelimiter.decision import Decision, Result, decide
from django_ratelimiter.engine import Algorithm, Charge, Limit, Verdict, Version
from django_ratelimiter.headers import rejection_response, response_fields
from django_ratelimiter.identity import client_ip
from django_ratelimiter.values.partitions import IDENTITIES, NAMED

from .headers.test_fields import ALLOWED, DENIED, results, softly
from .pages import DOCS, PAGES, ROOT, TEXTS, blocks, rows, section
from .test_public_names import fields

#: As they are, not as the tests have them.
DEFAULTS = {name: entry.default for name, entry in conf.ENTRIES.items()}


def python_blocks() -> list[Any]:
    """Every Python example that is no session, as a parameter named by its page, and those that are files."""
    return [
        *(pytest.param(path.read_text("utf-8"), id=path.name) for path in (DOCS / "howto").glob("*.py")),
        *(
            pytest.param(block, id=f"{name}-{number}")
            for name, text in TEXTS.items()
            for number, block in enumerate(blocks(text, "python"))
            if ">>>" not in block
        ),
    ]


def test_every_setting_stands_in_the_table_with_its_default() -> None:
    told = {
        cells[0].strip("`"): ast.literal_eval(cells[1].strip("`"))
        for cells in rows(PAGES["docs/reference/settings.md"])
    }
    assert told == DEFAULTS


@pytest.mark.parametrize("block", [block for block in python_blocks() if '"REVEAL": [' in block.values[0]])
def test_an_example_that_reveals_more_reveals_the_default_too(block: str) -> None:
    for told in re.findall(r'"REVEAL": (\[.*?\])', block):
        assert DEFAULTS["REVEAL"] == ast.literal_eval(told)[: len(DEFAULTS["REVEAL"])]


def test_the_example_of_a_callers_own_limits_has_what_the_api_returns() -> None:
    from django_ratelimiter.api.views import RateLimitOwnReportSerializer

    def keys_of(fields: Any) -> dict[str, Any]:
        """Return the names of fields, each with those in it."""
        found = {name: getattr(each, "child", each) for name, each in fields.items()}
        return {name: keys_of(getattr(each, "fields", {})) for name, each in found.items()}

    def keys_in(told: Any) -> dict[str, Any]:
        told = told[0] if isinstance(told, list) else told
        return {name: keys_in(each) for name, each in told.items()} if isinstance(told, dict) else {}

    [told] = blocks(PAGES["docs/howto/rest-framework.md"], "json")
    assert keys_in(json.loads(told)) == keys_of(RateLimitOwnReportSerializer().fields)


def test_the_settings_that_raise_are_named() -> None:
    [sentence] = re.findall(r"raise `ImproperlyConfigured`: (.*?)\. So", PAGES["docs/reference/settings.md"], re.DOTALL)
    assert set(re.findall(r"`(\w+)`", sentence)) == {name for name, entry in conf.ENTRIES.items() if entry.required}


def test_every_check_stands_in_the_table() -> None:
    source = "".join(module.read_text("utf-8") for module in Path(checks.__file__).parent.glob("*.py"))
    told = [cells[0] for cells in rows(PAGES["docs/reference/checks.md"])]
    assert sorted(told) == sorted(set(re.findall(r'(?:check|message)\(\s*"([A-Z]\d+)"', source)))


def test_every_model_stands_in_the_page_and_every_field_that_operators_edit() -> None:
    page, models = PAGES["docs/reference/models.md"], fields()
    written = rows(section(page, "## What the program writes"))
    edited = re.findall(r"^## (\w+)$", page, re.MULTILINE)
    assert sorted([*edited, *(name for cells in written for name in re.findall(r"`(\w+)`", cells[0]))]) == sorted(
        models
    )
    for model in edited:
        cells = " ".join(cells[0] for cells in rows(section(page, f"## {model}")))
        assert sorted(["id", *re.findall(r"`(\w+)`", cells)]) == sorted(models[model]), model


@override_settings(RATELIMITER={"HEADERS": values.HEADER_SWITCHES})
def test_every_response_field_stands_in_the_table() -> None:
    request = RequestFactory().get("/", headers={"Origin": "https://example.org"})
    rejected = decide([*results(DENIED), *results(ALLOWED, slug="other")], Version(1))
    unread = decide(results(ALLOWED, slug="without-rules"), Version(0), degraded=True)
    others = [response_fields(each) for each in (decide(softly(), Version(1)), unread)]
    sent = {*rejection_response(request, rejected).headers, *others[0], *others[1]}
    told = rows(section(PAGES["docs/reference/models.md"], "### Fields"))
    assert {cells[0].strip("`") for cells in told} == sent


def test_every_signal_stands_in_the_table() -> None:
    told = [cells[0].strip("`") for cells in rows(section(PAGES["docs/reference/limiter.md"], "### Signals"))]
    own = ["rules_committed"]  # is the package's own
    assert told + own == [name for name, value in vars(signals).items() if type(value) is signals.Signal]


@pytest.mark.parametrize(
    ("page", "heading", "held"),
    [
        ("limiter", "### Decision", Decision),
        ("limiter", "### Result", Result),
        ("engine", "## Verdict", Verdict),
        ("engine", "## Limit", Limit),
        ("engine", "## Charge", Charge),
    ],
)
def test_what_a_class_holds_stands_in_its_table(page: str, heading: str, held: type) -> None:
    told = [
        name
        for cells in rows(section(PAGES[f"docs/reference/{page}.md"], heading))
        for name in re.findall(r"`(\w+)`", cells[0])
    ]
    own = inspect.signature(held).parameters
    assert [name for name in own if name not in told] == []
    assert [name for name in told if not (name in own or hasattr(held, name))] == []


def test_no_page_has_blocks_that_a_code_host_shows_raw() -> None:
    assert [name for name, text in TEXTS.items() if re.search(r"^ *(```|:::)\{", text, re.MULTILINE)] == []


def test_every_identity_stands_in_the_table() -> None:
    page = section(PAGES["docs/howto/identities.md"], "## What a rule can count by")
    told = [cells[0].strip("`") for cells in rows(page)]
    assert told == [*IDENTITIES, *NAMED, "a name of your own"]


#: Caches of functions that depend on their arguments alone: nothing invalidates them.
PURE = {
    "values/digests.py": "keyed_digest _mark_of _cipher",
    "identity/__init__.py": "source_digest meta_name _imported",
    "identity/proxies.py": "_counted _parse _is_trusted _network_of",
    "rules/formatting.py": "_grouped",
    "rules/tiers.py": "_networks_around",
    "rules/records.py": "multiply_limit",
    "rules/inline.py": "slug_of parse_rate rate_from rule_of",
    "throttling.py": "_rule_of",
    "engine/fallback.py": "_scaled",
    "engine/limits.py": "_packed _delay_us",
    "engine/call.py": "_template_of",
    "engine/calendars.py": "zone_of _window_of",
    "engine/redis/packing.py": "opening_by_redis _keys_of_note",
    "headers/responses.py": "_bodies _body_for",
    "usage/times.py": "_starts",
    "prometheus.py": "_counters_for",
    "models/limits.py": "columns_used",
    "admin/rules/limits.py": "_timezones",
    "decorators/__init__.py": "_ninja_class",
}
#: Caches of what code consists of: columns, a class, one setting.
UNBOUNDED = {"_ninja_class", "_peers_settings"}


def caches() -> Iterator[tuple[str, str, str]]:
    """File, name and bound of each `lru_cache`, and of each `len(...) >= CONSTANT`, which bounds a dictionary."""
    package = ROOT / "django_ratelimiter"
    for path in sorted(package.rglob("*.py")):
        file = str(path.relative_to(package))
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Compare):
                yield from ((file, name, "") for name in re.findall(r"^len\(.*\) >= ([A-Z_]+)$", ast.unparse(node)))
                continue
            makers = node.decorator_list if isinstance(node, ast.FunctionDef) else []
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                makers = [node.value]
            for maker in map(ast.unparse, makers):
                if re.match(r"(functools\.)?(lru_cache\(|cache$)", maker):
                    name = node.name if isinstance(node, ast.FunctionDef) else re.split(r"\W", ast.unparse(node))[0]
                    yield file, name, "".join(re.findall(r"maxsize=(?!None)(\w+)", maker))


def test_every_cache_stands_in_the_page_about_decisions() -> None:
    """Is one new? Then say there what invalidates it, or add it to PURE. Is one gone? Then take it out."""
    listed = re.findall(r"`([\w/.]+\.py)`(?::((?:,?\s+`\w+`)+))?", section(PAGES["docs/decisions.md"], "## Caches"))
    told = {(file, name) for file, names in [*listed, *PURE.items()] for name in re.findall(r"\w+", names) or [""]}
    found = {(file, name): bound for file, name, bound in caches()}
    assert len(found) > 40
    assert found.keys() - told == set()
    assert {name for (_file, name), bound in found.items() if not (bound or name.isupper())} == UNBOUNDED
    for file, name in told:
        assert re.search(rf"\b{name}\b", (ROOT / "django_ratelimiter" / file).read_text("utf-8")), (file, name)


def test_every_algorithm_is_described() -> None:
    page = PAGES["docs/explanation/algorithms.md"]
    for heading in ("## Which one", "## How much is allowed", "## What the answers mean"):
        told = [name for cells in rows(section(page, heading)) for name in re.findall(r"`(\w+)`", cells[0])]
        assert told == list(Algorithm), heading
    for algorithm in Algorithm:
        assert f"](algorithms/{algorithm}.svg)" in section(page, f"### {algorithm}")


def test_the_timelines_show_what_the_engine_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """If not: `python docs/timelines.py` draws them again."""
    monkeypatch.syspath_prepend(DOCS)
    timelines = importlib.import_module("timelines")
    kept = {picture.stem: picture.read_text("utf-8") for picture in timelines.FOLDER.glob("*.svg")}
    assert kept == timelines.pictures()


def test_counters_have_the_tags_that_the_table_says() -> None:
    for names, tags in rows(section(PAGES["docs/reference/engine.md"], "## Keys in Redis")):
        for name in re.findall(r"`(\w+)`", names):
            assert f"`{Limit(10, 60, name).tag}`" in tags


@override_settings(RATELIMITER={"TRUSTED_PROXIES": ["10.0.0.0/8"]})
def test_the_caller_behind_proxies_is_the_one_that_the_table_names() -> None:
    table = [
        cells for cells in rows(section(PAGES["docs/howto/identities.md"], "### How the caller is found")) if cells[2:]
    ]
    assert len(table) > 3
    for peer, forwarded, told in table:
        meta = {"REMOTE_ADDR": peer, "HTTP_X_FORWARDED_FOR": forwarded}
        assert client_ip(SimpleNamespace(META=meta)) == told.partition(":")[0]  # type: ignore[arg-type]


@pytest.mark.parametrize("page", [name for name, text in PAGES.items() if ">>>" in text])
def test_sessions_run_as_shown(page: str) -> None:
    text = re.sub(r"^```.*$", "", PAGES[page], flags=re.MULTILINE)  # a fence would count as what is printed
    session = doctest.DocTestParser().get_doctest(text, {}, page, page, 0)
    outcome = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(session)
    assert outcome.attempted
    assert not outcome.failed


@pytest.mark.parametrize("block", python_blocks())
def test_examples_are_python_and_import_what_exists(block: str) -> None:
    for node in ast.walk(ast.parse(block)):
        if isinstance(node, ast.ImportFrom) and not node.level:  # the others are of the reader's project
            if node.module == "django_ratelimiter.django_tasks" and django.VERSION < (6, 0):
                continue  # it is the first with tasks; tests/usage/test_django_tasks.py imports these names
            if node.module == "crontask":
                continue  # it needs Django 6.0
            module = importlib.import_module(node.module or "")
            for alias in node.names:
                assert hasattr(module, alias.name) or importlib.import_module(f"{node.module}.{alias.name}")


def test_the_examples_of_users_tests_pass(request: pytest.FixtureRequest, client: Client) -> None:
    texts = section(PAGES["docs/howto/recipes.md"], "## Limits in tests"), PAGES["docs/howto/testing.md"]
    case, functions = (block for text in texts for block in blocks(text, "python") if "def test_" in block)
    names: dict[str, Any] = {"__name__": __name__}
    exec(case, names)
    outcome = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(names["LimitTests"])(outcome)
    assert outcome.testsRun == 2
    assert not outcome.errors + outcome.failures
    exec(functions, names)
    tests = [value for name, value in names.items() if name.startswith("test_")]
    assert len(tests) == 2
    for test in tests:
        test(**{name: request.getfixturevalue(name) for name in inspect.signature(test).parameters})


def test_the_settings_of_the_readme_are_those_of_the_quickstart() -> None:
    """The README has them in the order of its sections, the quickstart in one block."""
    readme = section(TEXTS["README.md"], "## Two-minute start") + section(
        TEXTS["README.md"], "## Then Redis, and rules in the admin"
    )
    [page] = blocks(PAGES["docs/quickstart.md"], "python")
    found = {ast.unparse(node) for block in blocks(readme, "python") for node in ast.parse(block).body}
    assert {ast.unparse(node) for node in ast.parse(page).body} <= found


@pytest.mark.parametrize("block", [block for block in python_blocks() if "\nCACHES = " in f"\n{block.values[0]}"])
def test_caches_have_a_default_for_django_accepts_none_without(block: str) -> None:
    settings: dict[str, Any] = {"INSTALLED_APPS": [], "MIDDLEWARE": []}
    exec(block, settings)
    assert {"default", "ratelimit"} <= settings["CACHES"].keys()
