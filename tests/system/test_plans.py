"""A new project with the plans of the recipe, under gunicorn and uvicorn, with each kind of TIER_RESOLVER."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import pytest

from example_project.redis_server import HOST, free_port

from ..pages import PAGES, blocks, section
from .site import PROJECT, running

pytestmark = pytest.mark.once

RECIPE = section(PAGES["docs/howto/recipes.md"], "## API key with two plans")
#: Further functions of the module that the recipe calls `shop/limits.py`.
MORE = blocks(section(PAGES["docs/howto/plans.md"], "## If customers log in as well"), "python")

#: Around those of the page.
SETTINGS = """
import os
from tests.system.settings import *
from tests.system.settings import INSTALLED_APPS, RATELIMITER

FOLDER = os.path.dirname(__file__)
DATABASES = {{"default": {{"ENGINE": "django.db.backends.sqlite3", "NAME": FOLDER + "/shop.sqlite3"}}}}
ROOT_URLCONF = "shop.urls"
{page}
RATELIMITER |= {{"TIER_CACHE_SECONDS": 3_600, "DEADLINE_MS": 10_000, "NAMESPACE": "plans"}}
RATELIMITER["TIER_RESOLVER"] = os.environ.get("RESOLVER", RATELIMITER["TIER_RESOLVER"])
"""

#: The views of the shop, and its resolvers with a note of their calls.
URLS = """
from django.http import HttpResponse
from django.urls import path

from shop import limits

called = []


def plan_of(identity):
    called.append(identity.user_id or identity.api_key.pk)
    return limits.plan_of(identity)


async def aplan_of(identity):
    called.append(identity.user_id or identity.api_key.pk)
    return await limits.aplan_of(identity)


urlpatterns = [path(f"{name}/", lambda _: HttpResponse(str(len(called)))) for name in ("api", "site", "called")]
"""

#: Two accounts with two keys each; prints the key of a session of the first.
DATA = """
import django
django.setup()
from django.contrib.auth.models import User
from django.test import Client
from django_ratelimiter.identity import hash_api_key
from shop.models import Account, ApiKey
from tests.making import make_rule

for plan in ("pro", "free"):
    user = User.objects.create_user(plan)
    account = Account.objects.create(user=user, plan=plan)
    for number in (1, 2):
        ApiKey.objects.create(account=account, hash=hash_api_key(f"{plan}-{number}"))
client = Client()
client.force_login(User.objects.get(username="pro"))
print(client.cookies["sessionid"].value)
"""

SITE_RULE = """
  site: {mode: enforce, path: /site/, path_kind: exact, partition_by: [user], limits: [
    {tier: free, quota: 30, window_seconds: 86400}, {tier: pro, quota: 60, window_seconds: 86400}]}
"""

SERVERS = {
    "gunicorn": "-m gunicorn shop.wsgi --bind {host}:{port} --workers 1 --threads 8 --no-control-socket",
    "uvicorn": "-m uvicorn shop.asgi:application --lifespan off --log-level warning --host {host} --port {port}",
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project, with what the page says typed in its order."""
    folder = tmp_path_factory.mktemp("project")
    shop = folder / "shop"
    shop.mkdir()
    models, limits, settings = blocks(RECIPE, "python")
    for kind in ("wsgi", "asgi"):
        text = f"from django.core.{kind} import get_{kind}_application\napplication = get_{kind}_application()\n"
        (shop / f"{kind}.py").write_text(text)
    for name, text in (("__init__", ""), ("models", models), ("limits", "\n".join((limits, *MORE))), ("urls", URLS)):
        (shop / f"{name}.py").write_text(text)
    (folder / "shop_settings.py").write_text(SETTINGS.format(page=settings))
    (folder / "data.py").write_text(DATA)
    [rules] = blocks(RECIPE, "yaml")
    (folder / "ratelimits.yaml").write_text(rules + SITE_RULE)
    manage = ("-m", "django")
    run(folder, *manage, "migrate", "--run-syncdb", "--verbosity", "0")
    assert "no issues" in run(folder, *manage, "check")
    run(folder, *manage, "ratelimit", "apply", "ratelimits.yaml")
    (folder / "session").write_text(run(folder, "data.py").strip())
    return folder


def environment(folder: Path, **variables: str) -> dict[str, str]:
    return {"DJANGO_SETTINGS_MODULE": "shop_settings", "PYTHONPATH": f"{folder}{os.pathsep}{PROJECT}", **variables}


def run(folder: Path, *command: str) -> str:
    done = subprocess.run(
        (sys.executable, *command), cwd=folder, env=os.environ | environment(folder), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("resolver", ["api_key.plan", "shop.urls.plan_of", "shop.urls.aplan_of"])
@pytest.mark.parametrize("server", SERVERS)
def test_each_customer_has_the_limits_of_the_plan(project: Path, server: str, resolver: str, redis_url: str) -> None:
    port, session = free_port(), (project / "session").read_text()

    def get(path: str, **headers: str) -> tuple[str, str]:
        with closing(HTTPConnection(HOST, port, timeout=60)) as connection:
            connection.request("GET", path, headers=headers)
            response = connection.getresponse()
            return response.headers.get("X-RateLimit-Limit", ""), response.read().decode()

    def is_ready() -> bool:
        return get("/called/") == ("", "0")

    command = SERVERS[server].format(host=HOST, port=port).split()
    with running(project, *command, is_ready=is_ready, **environment(project, RESOLVER=resolver)):
        keys = ("free-1", "pro-1") * 6
        with ThreadPoolExecutor(8) as pool:
            found = pool.map(lambda key: get("/api/", Authorization=f"Api-Key {key}")[0], keys)
            of_user = pool.map(lambda _: get("/site/", Cookie=f"sessionid={session}")[0], range(4))
        assert [*found] == ["3", "6"] * 6
        is_path = resolver.startswith("api_key.")
        assert [*of_user] == ["30" if is_path else "60"] * 4
        assert get("/called/")[1] == ("0" if is_path else "3")
        assert "429" in get("/api/", Authorization="Api-Key unknown")[1]
