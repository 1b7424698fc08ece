"""Public names are listed in docs/reference/public-names.txt, and nothing leaves that list unnoticed.

`python -m tests.test_public_names` adds what is new. Take a name out by hand, once it has been deprecated for two minor
versions: CHANGELOG.md.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from types import ModuleType

from django.apps import apps
from django.dispatch import Signal

from django_ratelimiter import exceptions, signals

from .pages import PAGES, ROOT, TEXTS

LIST = ROOT / "docs/reference/public-names.txt"
PACKAGE = "django_ratelimiter"

#: Modules whose `__all__` is public, whether or not the docs show each name.
WHOLE = ("", *(".core", ".decorators", ".engine", ".engine.redis", ".limiter", ".models", ".testing"))
#: What programs get or catch without importing it in an example.
GOT = (
    *("django_tasks.collect_usage", "django_tasks.watch_usage"),  # where Django has tasks
    *("decision.Decision", "decision.Result", "limiter.metered.MeteredCost", "limiter.slots.Slot"),
    *("prometheus.metrics", "prometheus.registry", "rules.ruleset.Facts", "rules.ruleset.RuleSet"),
    *("throttling.SimpleRateThrottle",),
)
#: Modules of which the docs only say how they are made.
INSIDE = ("docs/decisions.md", "docs/explanation/", "docs/howto/add-an-algorithm.md")


def pages() -> list[str]:
    """Return the pages for those who use the package."""
    return [TEXTS["README.md"], *(text for name, text in PAGES.items() if not name.startswith(INSIDE))]


def imported(text: str) -> set[str]:
    """Return the names that the Python examples of a page import from the package."""
    found = set()
    for block in re.findall(r"^ *```python\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL):
        code = re.sub(r"^(?:>>>|\.\.\.) ?", "", inspect.cleandoc(block), flags=re.MULTILINE)
        try:
            tree = ast.parse(code)
        except SyntaxError:  # a session: its output is no Python
            tree = ast.parse("\n".join(re.findall(r"^from [\w.]+ import \w[\w, ]*$", code, re.MULTILINE)))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == PACKAGE:
                found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def described(text: str) -> set[str]:
    """Return the names that a page writes out with their module."""
    return set(re.findall(rf"[`\"]({PACKAGE}(?:\.\w+)+)(?:\([^`]*\))?[`\"]", text))


def resolved(dotted: str) -> object | None:
    """Return what a dotted name names, or None if nothing has that name."""
    parts = dotted.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError as error:
            if error.name == "django.tasks":  # this Django has none yet
                return error
            continue
        for name in parts[count:]:
            found = getattr(found, name, None)
        return found
    return None


def is_error(value: object) -> bool:
    """Return whether this can be raised."""
    return inspect.isclass(value) and issubclass(value, Exception)


def names_in_python() -> set[str]:
    """Return what can be imported: shown in the docs, or in `__all__` of a public module."""
    shown = {name for text in pages() for name in imported(text) | described(text)}
    found = {name for name in shown if not (resolved(name) is None or isinstance(resolved(name), ModuleType))}
    found |= {f"{PACKAGE}.{name}" for name in GOT}
    found |= {f"{PACKAGE}.signals.{name}" for name, value in vars(signals).items() if isinstance(value, Signal)}
    found -= {f"{PACKAGE}.signals.rules_committed"}  # is the package's own
    found |= {f"{PACKAGE}.exceptions.{name}" for name, value in vars(exceptions).items() if is_error(value)}
    for end in WHOLE:
        module = importlib.import_module(f"{PACKAGE}{end}")
        exported = getattr(module, "__all__", None) or [name for name in vars(module) if name.isupper()]
        found |= {f"{PACKAGE}{end}.{name}" for name in exported}
    return found


def fields() -> dict[str, list[str]]:
    """Return the names of the fields of each model."""
    models = apps.get_app_config(PACKAGE).get_models()
    return {model.__name__: [field.name for field in model._meta.concrete_fields] for model in models}


def names_elsewhere() -> set[str]:
    """Return what settings, shells, beats, fixtures and rows name."""
    from django.core.management import load_command_class

    from django_ratelimiter import conf

    from .test_pages import names_of_others

    found = {f"setting RATELIMITER[{name!r}]" for name in conf.ENTRIES}
    found |= {f"task or permission {name}" for name in names_of_others()}
    parser = load_command_class(PACKAGE, "ratelimit").create_parser("manage.py", "ratelimit")
    shown = parser.format_help().partition("\n  SUBCOMMAND\n")[2]
    found |= {f"command ratelimit {name}" for name in re.findall(r"^    (\w+)", shown, re.MULTILINE)}
    return found | {f"field {model}.{name}" for model, names in fields().items() for name in names}


def listed() -> list[str]:
    """Return the lines of the committed list."""
    return LIST.read_text("utf-8").splitlines()


def test_no_public_name_has_vanished() -> None:
    """A name that is to go is deprecated first, for two minor versions: CHANGELOG.md."""
    gone = set(listed()) - names_in_python() - names_elsewhere()
    assert sorted(name for name in gone if " " in name or resolved(name) is None) == []


def test_each_public_name_is_listed() -> None:
    """Is one new? `python -m tests.test_public_names` writes it into the list: then we stand by it."""
    assert sorted((names_in_python() | names_elsewhere()) - set(listed())) == []


def test_the_list_is_sorted_and_names_nothing_twice() -> None:
    assert listed() == sorted(set(listed()))
    assert f"{PACKAGE}.decorators.ratelimit" in listed()
    assert f"{PACKAGE}.middleware.RateLimitMiddleware" in listed()
    assert len(listed()) > 150


if __name__ == "__main__":
    import os

    import django

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    django.setup()
    old = set(listed()) if LIST.exists() else set()
    LIST.write_text("".join(f"{name}\n" for name in sorted(old | names_in_python() | names_elsewhere())), "utf-8")
