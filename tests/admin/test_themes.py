"""Themes of the admin clash with no name of ours, and colours that a theme does not know have others."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest
from django.apps import apps
from django.test import Client
from django.urls import reverse

import django_ratelimiter
from django_ratelimiter.admin.callers.tables import AccessEntryAdmin, TierAdmin, TierAssignmentAdmin
from django_ratelimiter.admin.rules.admin import RuleAdmin

PACKAGE: Final = Path(django_ratelimiter.__file__).parent
TEMPLATES: Final = sorted(PACKAGE.glob("templates/admin/**/*.html"))
SHEETS: Final = sorted(
    PACKAGE / "static/django_ratelimiter" / f"{name}.css"
    for name in ("control", "rules", "usage", "history", "forecast")
)

#: Classes of Django's admin that its pages have, and ours use as they are meant there.
DJANGOS: Final = {
    *("app-", "breadcrumbs", "button", "cancel-link", "delete-confirmation", "errornote", "errors", "help"),
    *("messagelist", "model-", "warning"),
}


def by_name(files: list[Path]) -> list[object]:
    return [pytest.param(file, id=file.name) for file in files]


@pytest.mark.parametrize("template", by_name(TEMPLATES))
def test_a_class_of_ours_has_our_prefix(template: Path) -> None:
    page = re.sub(r"\{#.*?#\}", "", template.read_text())
    for given in re.findall(r'class="((?:[^"{]|\{\{.*?\}\}|\{%.*?%\})*)"', page):
        names = re.sub(r"\{%.*?%\}|\{\{.*?\}\}", " ", given).split()
        assert {name for name in names if not name.startswith("ratelimiter-")} <= DJANGOS, given


@pytest.mark.parametrize("sheet", by_name([*SHEETS, *TEMPLATES]))
def test_each_colour_has_a_fallback(sheet: Path) -> None:
    """A theme that does not extend Django's style sheet knows none of its variables: a chart without is black."""
    text = sheet.read_text()
    ours = set(re.findall(r"(--ratelimiter-[a-z-]+):", "".join(map(Path.read_text, SHEETS))))
    assert set(re.findall(r"var\(\s*(--[a-z-]+)\s*\)", text)) <= ours


def test_each_colour_of_an_svg_is_set_by_a_class_or_an_attribute() -> None:
    """What has neither is black."""
    styles = "".join(map(Path.read_text, SHEETS))
    styled = set(re.findall(r"\.(ratelimiter-[a-z-]+)\b(?=[^{}]*\{[^}]*\b(?:fill|stroke):)", styles))
    for template in TEMPLATES:
        for shape in re.findall(r"<(?:rect|line) ([^>]*)/>", template.read_text()):
            filled = re.search(r'\bfill="', shape)
            of_class = re.search(r'class="([^"{]*)(\{\{ part\.kind \}\})?(?:\{\{ \w+\.level \}\})?"', shape)
            assert filled or (of_class and (of_class[2] or of_class[1].strip() in styled)), (template.name, shape)


#: The part of a theme, what it colours, the theme's own colours of it and of text, and the grounds that it stands on.
PALE: Final = [
    ("#grp-content", "--body-quiet-color", "#888888", "#444444", "#ffffff"),
    ("#grp-content", "--grp-link-color", "#309bbf", "#444444", "#ffffff"),
    ("#grp-content", "--grp-link-color", "#309bbf", "#000000", "#f5d0d2"),  # in a notice
    ("[data-bs-theme]", "--bs-link-color", "#0d6efd", "#212529", "#f8f9fa"),
    ("[data-bs-theme]", "--bs-link-color", "#0d6efd", "#000000", "#f0ccce"),
    ("[data-bs-theme]", "--bs-link-color", "#6ea8fe", "#dee2e6", "#212529"),  # dark
    ("[data-bs-theme]", "--bs-link-color", "#6ea8fe", "#ffffff", "#56353a"),
    ("[data-bs-theme]", "--bs-code-color", "#d63384", "#212529", "#f8f9fa"),
]


def parts(colour: str) -> list[float]:
    return [int(colour[place : place + 2], 16) for place in (1, 3, 5)]


def luminance(colour: list[float]) -> float:
    linear = [each / 255 / 12.92 if each <= 10 else ((each / 255 + 0.055) / 1.055) ** 2.4 for each in colour]
    return sum(weight * each for weight, each in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize(("theme", "name", "own", "text", "ground"), PALE)
def test_pale_colours_of_themes_are_mixed_with_text_until_they_can_be_read(
    theme: str, name: str, own: str, text: str, ground: str
) -> None:
    sheet = next(each for each in SHEETS if each.name == "control.css").read_text()
    mixed = rf"{re.escape(theme)} [^{{]*{{[^}}]*color-mix\(in srgb, var\({name}, #\w+\) (\d+)%"
    [share] = [int(each) / 100 for each in re.findall(mixed, sheet)]
    mix = [share * one + (1 - share) * other for one, other in zip(parts(own), parts(text), strict=True)]
    light, dark = sorted((luminance(mix), luminance(parts(ground))), reverse=True)
    assert (light + 0.05) / (dark + 0.05) >= 4.5


@pytest.mark.parametrize("page", [AccessEntryAdmin, RuleAdmin, TierAdmin, TierAssignmentAdmin])
def test_a_list_has_the_link_to_add_a_row_under_unfold(page: type) -> None:
    """It shows the link only where the admin of the model says so, as its own base class does."""
    assert page.show_add_link  # type: ignore[attr-defined]


@pytest.mark.django_db
@pytest.mark.parametrize(("installed", "titles"), [("", 1), ("unfold", 2)])
def test_a_page_has_its_title_under_unfold_too(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch, installed: str, titles: int
) -> None:
    """That theme names the model alone. Here Django's own is in its place, so that there are two."""
    is_installed = apps.is_installed
    monkeypatch.setattr(apps, "is_installed", lambda name: name == installed or is_installed(name))
    for name in ("explain", "caller", "rejections", "history", "usagebucket_changelist", "enforcement"):
        response = admin_client.get(reverse(f"admin:django_ratelimiter_{name}"))
        assert len(re.findall("<h1", response.content.decode())) == titles, name


PICTURES: Final = sorted((Path(__file__).parents[2] / "docs").rglob("*.png"))

#: What says in a PNG's 26th byte that each pixel names a colour of a palette.
PALETTE: Final = 3


@pytest.mark.parametrize("picture", [pytest.param(each, id=each.name) for each in PICTURES])
def test_a_picture_of_the_documentation_has_a_palette(picture: Path) -> None:
    found = picture.read_bytes()
    assert found[25] == PALETTE
    assert len(found) < 100_000
