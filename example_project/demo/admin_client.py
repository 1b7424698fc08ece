"""Uses the admin like a person: logs in, fills in forms, reads a page. Plain HTTP with cookies."""

from __future__ import annotations

import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from html.parser import HTMLParser
from http.cookiejar import CookieJar
from typing import Final

from .servers import DemoError

RULES_PATH: Final = "/admin/django_ratelimiter/rule/"
USAGE_PATH: Final = "/admin/django_ratelimiter/usagebucket/"


class Admin:
    """A browser without a screen, for the admin at `url`."""

    def __init__(self, url: str) -> None:
        self._url = url
        cookies = urllib.request.HTTPCookieProcessor(CookieJar())
        # Never through a proxy from the environment: the site is on this machine.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), cookies)

    def log_in(self, name: str, password: str) -> None:
        """Log in through the admin's own page. Raises DemoError if the login fails."""
        path = "/admin/login/"
        fields = Form(self.open(path), "login-form").fields | {"username": name, "password": password}
        if 'id="login-form"' in self.open(path, {**fields, "next": "/admin/"}):
            raise DemoError("The admin rejected the demo's login.")

    def edit_limit(self, rule: str, tier: str, quota: int) -> None:
        """Set a tier's quota in the form of a rule (both by name) and save. Raises DemoError if it is not saved."""
        path = self._change_path(rule)
        form = Form(self.open(path), "rule_form")
        rows = [name for name, label in form.chosen.items() if label == tier and re.fullmatch(r"limits-\d+-tier", name)]
        if len(rows) != 1:
            raise DemoError(f"The form of “{rule}” has {len(rows)} limits for {tier}, and should have one.")
        page = self.open(path, form.fields | {rows[0].replace("-tier", "-quota"): str(quota), "_save": "Save"})
        if "errornote" in page or 'class="success"' not in page:
            raise DemoError(f"The admin did not save “{rule}”:\n{_told(page)}")

    def usage(self) -> dict[tuple[str, str], dict[str, int]]:
        """Return the report of the last hour: by rule and tier, the value in each column. Empty without usage."""
        table = Table(self.open(f"{USAGE_PATH}?period=1h"), "ratelimiter-totals")
        return {
            (rule, tier): {title: _number(cell) for title, cell in zip(table.titles[2:], cells, strict=True)}
            for rule, tier, *cells in table.rows
        }

    def _change_path(self, rule: str) -> str:
        links = re.findall(rf'<a href="({RULES_PATH}\d+/change/[^"]*)">([^<]*)</a>', self.open(RULES_PATH))
        for path, name in links:
            if name == rule:
                return str(path)
        raise DemoError(f"The admin's list shows no rule “{rule}”.")

    def open(self, path: str, fields: Mapping[str, str | list[str]] | None = None) -> str:
        """Return the page at a path, after redirects; `fields` are posted as a form."""
        url = urllib.parse.urljoin(self._url, path)
        data = None if fields is None else urllib.parse.urlencode(fields, doseq=True).encode()
        request = urllib.request.Request(url, data, {"Referer": url})
        try:
            with self._opener.open(request, timeout=20) as response:
                return str(response.read().decode())
        except urllib.error.URLError as error:
            raise DemoError(f"{path} could not be opened: {error}") from error


class Form(HTMLParser):
    """The data that a browser would send for the form with this id on a page.

    fields: values by name, a list if there are several. chosen: the label of each selected option, by name.
    """

    def __init__(self, page: str, form_id: str) -> None:
        super().__init__()
        self.fields: dict[str, str | list[str]] = {}
        self.chosen: dict[str, str] = {}
        self._id = form_id
        self._inside = False
        self._select = self._textarea = ""
        self._multiple = False
        self._option: tuple[str, bool] | None = None
        self._text: list[str] = []
        self.feed(page)
        if not self.fields:
            raise DemoError(f"The page has no form {form_id}.")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "form":
            self._inside = given.get("id") == self._id
        elif self._inside and tag == "input":
            self._input(given, "checked" in given)
        elif self._inside and tag == "select":
            self._select, self._multiple = given.get("name", ""), "multiple" in given
        elif self._inside and tag == "option":
            self._option, self._text = (given.get("value", ""), "selected" in given), []
        elif self._inside and tag == "textarea":
            self._textarea, self._text = given.get("name", ""), []

    def handle_data(self, data: str) -> None:
        self._text.append(data)

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self._inside = False
        elif self._inside and tag == "option" and self._option:
            value, selected = self._option
            # A browser uses the first option if none is selected.
            if selected or (not self._multiple and self._select not in self.fields):
                self._add(self._select, value, several=self._multiple)
                self.chosen[self._select] = "".join(self._text).strip()
        elif self._inside and tag == "textarea":
            self._add(self._textarea, "".join(self._text).removeprefix("\n"))

    def _input(self, given: Mapping[str, str], checked: bool) -> None:
        kind = given.get("type", "text")
        if kind in ("submit", "button", "image", "reset", "file"):
            return
        if kind in ("checkbox", "radio") and not checked:
            return
        self._add(given.get("name", ""), given.get("value", "on" if kind == "checkbox" else ""), kind == "checkbox")

    def _add(self, name: str, value: str, several: bool = False) -> None:
        before = self.fields.get(name)
        if not name:
            return
        if several and isinstance(before, list):
            before.append(value)
        else:
            self.fields[name] = [value] if several else value


class Table(HTMLParser):
    """The text of the cells in the body of the table with this class; empty if there is no such table."""

    def __init__(self, page: str, table_class: str) -> None:
        super().__init__()
        self.titles: list[str] = []
        self.rows: list[list[str]] = []
        self._class = table_class
        self._part = ""
        self._cell: Callable[[str], None] | None = None
        self._text: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "table":
            self._part = "table" if self._class in (dict(attrs).get("class") or "").split() else ""
        elif self._part and tag in ("thead", "tbody", "tfoot"):
            self._part = tag
        elif self._part == "tbody" and tag == "tr":
            self.rows.append([])
        elif self._part in ("thead", "tbody") and tag in ("th", "td"):
            self._cell, self._text = (self.titles if self._part == "thead" else self.rows[-1]).append, []

    def handle_data(self, data: str) -> None:
        self._text.append(data)

    def handle_endtag(self, tag: str) -> None:
        if tag == "table":
            self._part = ""
        elif tag in ("th", "td") and self._cell:
            self._cell(" ".join("".join(self._text).split()))
            self._cell = None


def _number(text: str) -> int:
    """Return the whole number in a cell, with any thousands separators; -1 for a cell without one."""
    digits = re.sub(r"\D", "", text)
    return int(digits) if digits else -1


def _told(page: str) -> str:
    """Return the errors on a page, as text."""
    found = re.findall(r'<(?:ul class="errorlist[^"]*"|p class="errornote")[^>]*>(.*?)</(?:ul|p)>', page, re.DOTALL)
    return "\n".join(" ".join(re.sub(r"<[^>]+>", " ", text).split()) for text in found) or "(it shows no error)"
