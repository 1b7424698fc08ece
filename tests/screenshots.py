"""Takes pictures of the admin's pages of this app, and looks for faults on the way: `python -m tests.screenshots`.

Each page of `tests.admin_pages.PAGES` is opened in a browser in light and dark, on a tablet and a phone, in German, and
by somebody who may view everything and change nothing. It fails if a page is broader than the screen, breaks a strict
Content-Security-Policy, cannot load something, or has a fault by axe-core; --no-axe leaves that out.

It runs with the newest Python found and its latest Django, in the environment "latest" of tox.toml: new sites look like
that. --here runs it with this Python and its Django.

--docs puts some of them into the documentation, where they are to be looked at before they are committed; without
names of pages also those of `tests.docs_pictures`.
DJANGO_SETTINGS_MODULE names other settings than `tests.settings`, such as some that add a theme of the admin to these.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import groupby
from pathlib import Path
from threading import Thread
from typing import Any, Final, NamedTuple

from example_project.redis_server import RedisServer
from tests.axe import faults_of, source
from tests.browser import Browser, browser
from tests.installing import UV

ROOT: Final = Path(__file__).parent.parent
#: Where the content of a page ends, in pixels.
BOTTOM: Final = "return Math.ceil(document.querySelector('#content-main').getBoundingClientRect().bottom + scrollY)"

#: A picture takes a third of the room when each pixel names one of 256 colours.
QUANTIZE: Final = """
import sys, pathlib, PIL.Image
for file in pathlib.Path(sys.argv[1]).iterdir():
    PIL.Image.open(file).convert("RGB").quantize(256, dither=0).save(f"{sys.argv[2]}/{file.name}", optimize=True)
"""


class Variant(NamedTuple):
    """How a page is looked at."""

    name: str
    width: int = 1280
    dark: bool = False
    language: str = "en"
    user: str = "admin"


VARIANTS: Final = (
    Variant("light"),
    Variant("dark", dark=True),
    Variant("tablet", width=1024),
    Variant("narrow", width=360),
    Variant("german", language="de"),
    Variant("viewer", user="viewer"),
)


#: The pictures of the documentation: the page and how it is looked at, by name.
DOCS: Final = {
    "overview": ("overview", "light"),
    "rejections": ("rejections", "light"),
    "blocked-customer": ("customer", "light"),
    "explain": ("explained", "light"),
    "history-list": ("history", "light"),
    "history-bring-back": ("history-bring-back", "light"),
    "rules-list": ("rules", "light"),
    "rules-form": ("rule", "light"),
}


def main() -> int:
    """Take the pictures. Returns how many faults were found, 1 at most."""
    parser = argparse.ArgumentParser(prog="python -m tests.screenshots", description=__doc__)
    parser.add_argument("pages", nargs="*", help="names of pages; none = all")
    parser.add_argument("--to", type=Path, default=ROOT / ".cache/screenshots", help="the folder for the pictures")
    parser.add_argument("--docs", action="store_true", help="put those of the documentation into docs/howto")
    parser.add_argument("--no-axe", action="store_true", help="do not run axe-core")
    parser.add_argument("--no-policy", action="store_true", help="for themes that break a strict policy themselves")
    parser.add_argument("--stopped", action="store_true", help="while all enforcement is stopped")
    parser.add_argument("--here", action="store_true", help="with this Python and its Django")
    chosen = parser.parse_args()
    if not chosen.here:
        return on_latest()
    chosen.to.mkdir(parents=True, exist_ok=True)
    axe = "" if chosen.no_axe else source()
    faults = []
    shown: dict[str, bytes] = {}
    with site(stopped=chosen.stopped, strict=not chosen.no_policy) as address:
        from tests.admin_pages import pages

        wanted = [page for page in pages() if not chosen.pages or page.name in chosen.pages]
        pictures = [(page, each) for page in wanted for each in VARIANTS if each.user == "admin" or page.viewer == 200]
        for user, taken in groupby(sorted(pictures, key=user_of), user_of):
            with browser() as window:
                log_in(window, address, user)
                for page, variant in taken:
                    picture, found = look_at(window, f"{address}{page.url}", variant, axe, themed=chosen.no_policy)
                    (chosen.to / f"{page.name}-{variant.name}.png").write_bytes(picture)
                    names = [name for name, shown in DOCS.items() if shown == (page.name, variant.name)]
                    for name in names if chosen.docs else ():
                        shown[name] = window.pictured(window.script(BOTTOM) + 20)
                    faults += [f"{page.name}, {variant.name}: {fault}" for fault in found]
        if chosen.docs:
            write_docs(address, shown, others=not chosen.pages)
    print(f"{len(pictures)} pictures in {chosen.to}")
    for fault in faults:
        print(fault, file=sys.stderr)
    return min(len(faults), 1)


def on_latest() -> int:
    """Run this command with the latest Python and Django. Returns its code."""
    made = subprocess.run((".ci/tox", "run", "-q", "-e", "latest", "--notest"), cwd=ROOT).returncode
    command = (".tox/latest/bin/python", "-m", "tests.screenshots", "--here", *sys.argv[1:])
    return made or subprocess.run(command, cwd=ROOT).returncode


def write_docs(address: str, shown: dict[str, bytes], *, others: bool) -> None:
    """Write the pictures of the documentation. shown: taken already, by name. others: also those of `docs_pictures`."""
    from tests import docs_pictures

    with tempfile.TemporaryDirectory() as name:
        for picture, data in shown.items():
            Path(name, f"{picture}.png").write_bytes(data)
        if others:
            with browser() as window:
                log_in(window, address, "admin")
                docs_pictures.take(window, address, Path(name))
        assert UV, "uv is not installed here"
        quantize = (UV, "run", "--quiet", "--no-project", "--with", "pillow", "python", "-c", QUANTIZE, name)
        subprocess.run((*quantize, str(ROOT / "docs/howto")), check=True)


def look_at(window: Browser, url: str, variant: Variant, axe: str, *, themed: bool) -> tuple[bytes, Sequence[str]]:
    """A picture of the whole page, and what is wrong with it."""
    window.resize(variant.width, 900, dark=variant.dark)
    window.script("document.cookie = `django_language=${arguments[0]}; path=/`", variant.language)
    window.open(url)
    faults = window.complaints()
    width, height = window.script("const e = document.documentElement; return [e.scrollWidth, e.scrollHeight]")
    if width > variant.width:
        faults.append(f"{width} pixels wide")
    picture = window.pictured(height)
    if axe:
        faults += faults_of(window, axe, themed=themed)
    return picture, faults


def user_of(picture: tuple[Any, Variant]) -> str:
    """The user who looks."""
    return picture[1].user


def log_in(window: Browser, address: str, username: str) -> None:
    """Be this user from now on; by a cookie, for a theme may have another form."""
    from django.conf import settings
    from django.contrib.auth.models import User
    from django.test import Client

    client = Client()
    client.force_login(User.objects.get(username=username))
    window.open(f"{address}/static/admin/css/base.css")
    cookie = f"{settings.SESSION_COOKIE_NAME}={client.cookies[settings.SESSION_COOKIE_NAME].value}; path=/"
    window.script("document.cookie = arguments[0]", cookie)


@contextmanager
def site(*, stopped: bool, strict: bool) -> Iterator[str]:
    """A server with the settings of the tests, and rules and usage to look at: its address."""
    with ExitStack() as running:
        folder = running.enter_context(tempfile.TemporaryDirectory(prefix="screenshots-"))
        os.environ["TEST_REDIS_URL"] = running.enter_context(RedisServer()).url
        os.environ["TEST_DATABASE_URL"] = f"sqlite://{Path(folder, 'screenshots.sqlite3')}"
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
        _set_up(stopped=stopped, strict=strict)
        yield running.enter_context(_served())


def _set_up(*, stopped: bool, strict: bool) -> None:
    import django
    from django.conf import settings

    from tests.strict_csp import STRICT

    session = settings.MIDDLEWARE.index("django.contrib.sessions.middleware.SessionMiddleware")
    settings.MIDDLEWARE.insert(session + 1, "django.middleware.locale.LocaleMiddleware")
    if strict:
        settings.MIDDLEWARE.insert(0, STRICT)
    # Above Django's admin, so that its home page has our notice.
    settings.INSTALLED_APPS.insert(0, settings.INSTALLED_APPS.pop(settings.INSTALLED_APPS.index("django_ratelimiter")))
    settings.INSTALLED_APPS.append("example_project")
    settings.RATELIMITER |= {
        "CUSTOMER": "tests.pictured_customer.customer_of",
        "CUSTOMER_CALLERS": "tests.pictured_customer.callers_of",
        "API_KEY_RESOLVER": "tests.pictured_customer.find_key",
        "TIER_RESOLVER": "example_project.models.plan_of",
    }
    django.setup()
    from django.core.management import call_command

    from django_ratelimiter.rules import cache
    from tests.admin_pages import fill, users

    call_command("migrate", verbosity=0)
    author = users()["superuser"]
    fill(author)
    if stopped:
        cache.switch_enforcement(False, author)


@contextmanager
def _served() -> Iterator[str]:
    from django.contrib.staticfiles.handlers import StaticFilesHandler
    from django.core.servers.basehttp import ThreadedWSGIServer, WSGIRequestHandler
    from django.core.wsgi import get_wsgi_application

    class QuietHandler(WSGIRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing of each request."""

    with ThreadedWSGIServer(("127.0.0.1", 0), QuietHandler) as server:
        server.set_app(StaticFilesHandler(get_wsgi_application()))
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


if __name__ == "__main__":
    sys.exit(main())
