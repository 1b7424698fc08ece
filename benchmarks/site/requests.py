"""New requests, in the state after their view was found; importing this sets Django up."""

from __future__ import annotations

import os

import django
from django.http import HttpRequest
from django.urls import resolve
from django.utils.functional import SimpleLazyObject

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.site.settings")
django.setup()

from django.contrib.auth.middleware import AuthenticationMiddleware  # noqa: E402
from django.contrib.auth.models import User  # noqa: E402
from django.contrib.sessions.backends.db import SessionStore  # noqa: E402
from django.http import HttpResponse  # noqa: E402
from django.test import RequestFactory  # noqa: E402

from ..contest import address  # noqa: E402
from .rules import KEY  # noqa: E402

_factory = RequestFactory()
_authentication = AuthenticationMiddleware(lambda request: HttpResponse())


def anonymous(caller: int, name: str = "free") -> HttpRequest:
    """Return a request with only an address, for the view of this name."""
    made: HttpRequest = _factory.get(f"/{name}/", REMOTE_ADDR=address(caller))
    made.session = SessionStore()
    _authentication.process_request(made)
    made.resolver_match = resolve(made.path)
    return made


def known(caller: int, name: str = "known") -> HttpRequest:
    """Return a request of a signed-in user, already read, with an API key."""
    made: HttpRequest = _factory.get(f"/{name}/", REMOTE_ADDR=address(caller), HTTP_X_API_KEY=KEY)
    who = User(pk=caller, username="someone")
    made.user = SimpleLazyObject(lambda: who)  # type: ignore[assignment]
    made.resolver_match = resolve(made.path)
    return made
