"""A running site, rules for it, and an editor who uses its admin."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from typing import Any

import pytest
from django.contrib.auth import get_user_model

from django_ratelimiter.models import Rule
from tests import making
from tests.making import MakeRule

from .editor import Editor
from .load import Client
from .site import Site

StartSite = Callable[..., Site]
Edit = Callable[[Client], Editor]


@pytest.fixture(autouse=True)
def database(transactional_db: None) -> None:
    """Every system test commits, since other processes have to see what it does."""


@pytest.fixture(scope="package")
def _running_site(django_db_setup: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("site"), {}, "tests.system.wsgi", ())
    yield site
    site.stop()


@pytest.fixture
def site(_running_site: Site) -> Iterator[Site]:
    """The site that tests share; they leave it as they found it."""
    yield _running_site
    _running_site.disconnect()
    print(_running_site.output)  # shown with a test that fails


@pytest.fixture
def start_site(tmp_path: Any) -> Iterator[StartSite]:
    """Start a site of the test's own: `start_site(*options of gunicorn, application=…, **variables)`."""
    with ExitStack() as stack:

        def start(*options: str, application: str = "tests.system.wsgi", **variables: str) -> Site:
            site = Site(tmp_path, variables, application, options)
            stack.callback(site.stop)
            stack.callback(lambda: print(site.output))
            return site

        yield start


@pytest.fixture
def make_rule() -> MakeRule:
    """Make a rule of one limit a day for `/items/NUMBER/`: `make_rule(number, quota, algorithm=…, **fields)`."""

    def make(number: int, quota: int, algorithm: str = "sliding_window_counter", **fields: Any) -> Rule:
        path = {"path": f"/items/{number}/", "path_kind": "exact"}
        return making.make_rule(f"items-{number}", quota, algorithm=algorithm, **path, **fields)

    return make


@pytest.fixture
def edit() -> Edit:
    """Let another editor log in to the admin, on the worker of this client."""
    accounts = (f"editor-{number}" for number in count())

    def log_in(client: Client) -> Editor:
        user = get_user_model().objects.create_superuser(next(accounts), password="secret")
        return Editor(client, user.get_username(), "secret")

    return log_in
