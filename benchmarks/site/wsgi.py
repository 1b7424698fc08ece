"""The WSGI application: `gunicorn benchmarks.site.wsgi`. The header X-Caller is used as the caller's address."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.site.settings")
_site = get_wsgi_application()


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Call the site as a caller with that address."""
    environ["REMOTE_ADDR"] = environ.get("HTTP_X_CALLER", "127.0.0.1")
    response: Iterable[bytes] = _site(environ, start_response)
    return response
