"""Somebody who edits rules in the admin, over HTTP and on one worker."""

from __future__ import annotations

import time
from collections.abc import Mapping
from http.cookies import SimpleCookie
from urllib.parse import urlencode, urlsplit

from django.urls import reverse

from django_ratelimiter.models import Rule
from example_project.demo.admin_client import Form
from example_project.middleware import PROCESS_HEADER

from .load import Client


class Editor:
    """Logged in from the start. Every request goes to the worker of the client.

    posted: monotonic seconds at which the latest form was answered.
    """

    def __init__(self, client: Client, name: str, password: str) -> None:
        self.process = client.process
        self.posted = 0.0
        self._connection = client.connection
        self._cookies: SimpleCookie = SimpleCookie()
        path = reverse("admin:login")
        fields = Form(self.open(path), "login-form").fields
        page = self.open(path, {**fields, "username": name, "password": password, "next": reverse("admin:index")})
        assert 'id="login-form"' not in page

    def save(self, rule: Rule, **changed: object) -> str:
        """Change fields of a rule in its form and press Save: the page that follows. `quota` is its limit's."""
        path = reverse("admin:django_ratelimiter_rule_change", args=[rule.pk])
        fields = Form(self.open(path), "rule_form").fields
        for name, value in changed.items():
            field = f"limits-0-{name}" if name == "quota" else name
            assert field in fields
            fields[field] = str(value)
        page = self.open(path, {**fields, "_save": "Save"})
        assert "errornote" not in page, page
        return page

    def open(self, path: str, fields: Mapping[str, str | list[str]] | None = None) -> str:
        """The page at a path, after any redirects; `fields` are posted as a form."""
        headers = {"Cookie": "; ".join(f"{name}={cookie.value}" for name, cookie in self._cookies.items())}
        body = None
        if fields is not None:
            body = urlencode(fields, doseq=True)
            headers |= {"Content-Type": "application/x-www-form-urlencoded"}
        self._connection.request("GET" if fields is None else "POST", path, body, headers)
        response = self._connection.getresponse()
        page = response.read().decode()
        if fields is not None:
            self.posted = time.monotonic()
        assert int(response.headers[PROCESS_HEADER]) == self.process
        for cookie in response.headers.get_all("Set-Cookie", ()):
            self._cookies.load(cookie)
        if response.status == 302:
            return self.open(urlsplit(response.headers["Location"])._replace(scheme="", netloc="").geturl())
        assert response.status == 200, (path, response.status, page)
        return page
