"""The recipes, an API and a rules file, typed from their pages into a project: commands, and what they print."""

from __future__ import annotations

import getpass
import re
import shutil
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from doctest import ELLIPSIS, OutputChecker
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from example_project.redis_server import HOST, WatchedProcess, free_port

from ..pages import PAGES, blocks, section, with_files
from .site import PROJECT, running, wait_until

pytestmark = pytest.mark.once

PAGE = with_files(PAGES["docs/howto/recipes.md"])
HEADINGS = re.findall(r"^## (.*)$", PAGE, re.MULTILINE)[:11]
HEADINGS.remove("An invoice")  # see `usage/test_exact_usage.py`
SERVERS = HEADINGS.pop()
assert SERVERS.startswith("uvicorn")
PLANS_HEADING = HEADINGS.pop(HEADINGS.index("API key with two plans"))

#: Each with the lines above it, its language and its text.
BLOCKS = re.compile(r"((?:^(?!```)[^\n]*\n)*)^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

#: Below those of the quickstart: this run's Redis, which a busy machine may keep waiting.
SETTINGS = """
CACHES["ratelimit"]["LOCATION"] = "{redis_url}"
RATELIMITER |= {{"NAMESPACE": "{name}", "DEADLINE_MS": 10_000}}
"""


class Reader:
    """Somebody who has done the quickstart, and types what a recipe says. wrote: what each file got."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.wrote: dict[str, str] = {}

    def type(self, recipe: str, runs: bool = True) -> None:
        """Write each file and run each command; an example of text is what the command above it prints."""
        printed = ""
        for told, language, block in BLOCKS.findall(recipe):
            paragraph = " ".join(told.strip().rpartition("\n\n")[2].split())
            if language == "console":
                printed = self._run(block) if runs else ""
            elif language == "text":
                assert re.fullmatch(re.escape(block).replace("…", ".*"), printed), printed
            else:
                [name] = re.findall(r"`([\w/.]+\.(?:py|yaml|conf))`", paragraph)
                self._write(name, block, "t the end of" in paragraph)

    def _write(self, name: str, text: str, at_the_end: bool) -> None:
        self.wrote[name] = text
        if not name.startswith("/"):
            self.add(name, text, "a" if at_the_end else "w")

    def add(self, name: str, text: str, mode: str = "a") -> None:
        """Write at the end of a file."""
        with (self.folder / name).open(mode) as file:
            file.write(text)

    def _run(self, commands: str) -> str:
        if "127.0.0.1:8000" not in commands:
            return self.shell(commands)
        port = free_port()
        with serving(self.folder, port, "manage.py", "runserver", "--noreload", str(port)):
            return self.shell(commands.replace(":8000", f":{port}"))

    def shell(self, commands: str) -> str:
        """What a shell prints that has the project's Python."""
        variables = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "PYTHONPATH": str(PROJECT)}
        command = ("bash", "-euc", commands)
        done = subprocess.run(command, cwd=self.folder, env=variables, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def serving(folder: Path, port: int, *command: str, **variables: str) -> Any:
    """Run a program of the project, from when its port is open on."""

    def is_open() -> bool:
        with socket.create_connection((HOST, port)):
            return True

    return running(folder, *command, is_ready=is_open, **environment(folder), **variables)


def environment(folder: Path) -> dict[str, str]:
    return {"DJANGO_SETTINGS_MODULE": "mysite.settings", "PYTHONPATH": f"{folder}:{PROJECT}"}


@pytest.fixture(scope="module")
def new_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the quickstart leaves."""
    reader = Reader(tmp_path_factory.mktemp("quickstart"))
    reader.shell("django-admin startproject mysite .")
    [settings] = blocks(PAGES["docs/quickstart.md"], "python")
    reader.add("mysite/settings.py", settings)
    reader.shell("python manage.py migrate -v 0")
    reader.shell(
        "DJANGO_SUPERUSER_PASSWORD=x python manage.py createsuperuser --noinput --username me --email me@a.example"
    )
    return reader.folder


@pytest.fixture
def reader(new_project: Path, tmp_path: Path, redis_url: str) -> Reader:
    reader = Reader(shutil.copytree(new_project, tmp_path / "project"))
    reader.add("mysite/settings.py", SETTINGS.format(redis_url=redis_url, name=tmp_path.name))
    return reader


@pytest.mark.parametrize("heading", [*(f"## {heading}" for heading in HEADINGS), "### Plain ASGI", "### Channels"])
def test_a_recipe_does_what_it_says(reader: Reader, heading: str) -> None:
    follow(reader, section(PAGE, heading))


def follow(reader: Reader, text: str) -> None:
    """Do what a text says, and see that the project has no faults after it."""
    reader.type(text)
    check = "import mysite.asgi; from django.core.management import call_command; call_command('check')"
    assert "no issues" in reader.shell(f'python -c "{check}" 2>&1')


#: A task that works or is killed; LimitExceeded shows.
TASK = """python manage.py shell -v 0 -c "
import os
from django.contrib.auth.models import User
from mysite import tasks
user, _ = User.objects.get_or_create(username='{user}')
if {killed}:
    tasks.answer = lambda *_: os.kill(os.getpid(), 9)
tasks.summarise(user, 'hello world')" 2>&1 || true
python manage.py ratelimit caller --user {user} | grep 'used'
"""

#: A job charges the customer of its user.
CUSTOMER_OF = """

from django.contrib.auth.models import Group


def customer_of(identity) -> Group | None:
    return identity.user and Group.objects.get_or_create(pk=1, name="Acme")[0]
"""
CUSTOMER_RULE = """
rules:
  tokens-customer: {mode: enforce, scope: tokens, partition_by: [customer], limits: [
    {quota: 90, algorithm: fixed_window, calendar: month}]}
"""

#: The link on the page of all that are not verified; what they get, and one that is.
DENY = """
import re
from urllib.parse import unquote
from django_ratelimiter.models import AccessEntry
from django_ratelimiter.rules.stored import storage
page = client.get(reverse('admin:django_ratelimiter_caller'), dict(kind='partition', value='crawler=unverified'))
value = unquote(re.search('action=deny&amp;digest=([^&]*)', page.content.decode())[1])
AccessEntry.objects.create(action='deny', kind='digest', value=value)
storage.forget_entries()
sent = {'User-Agent': 'CCBot'}, {'User-Agent': 'CCBot', 'cf-verified-bot': 'true'}
print([client.get('/x/', headers=each).status_code for each in sent])
"""

IN_PROCESS = """python manage.py shell -v 0 -c "
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
client = Client(HTTP_HOST='localhost')
client.force_login(User.objects.get(username='me'))
{asked}"
"""


def test_budgets_are_charged_as_their_page_says(reader: Reader) -> None:
    follow(reader, PAGES["docs/howto/budgets.md"])
    tasks = [("eve", False), ("eve", True), ("ann", False)]
    told = [reader.shell(TASK.format(user=user, killed=killed)) for user, killed in tasks]
    used = [re.findall(r"(\d+) of 150", text) for text in told]
    assert used == [["30"], ["72"], ["120"]], "the second is killed, and leaves its estimate of 42"
    assert ["LimitExceeded" in text for text in told] == [False, False, True]
    reader.add("mysite/limits.py", CUSTOMER_OF)
    reader.add("mysite/settings.py", 'RATELIMITER["CUSTOMER"] = "mysite.limits.customer_of"\n')
    reader.add("customers.yaml", CUSTOMER_RULE)
    reader.shell("python manage.py ratelimit apply customers.yaml")
    reader.shell(TASK.format(user="zoe", killed=False))
    printed = reader.shell("python manage.py ratelimit caller --customer 1 || true")
    assert "tokens-customer: 90 per calendar month in UTC: 30 of 90 used" in printed


def test_crawlers_and_tools_are_limited_as_their_page_says(reader: Reader) -> None:
    follow(reader, PAGES["docs/howto/crawlers.md"])
    printed = reader.shell(IN_PROCESS.format(asked=DENY))
    assert printed == "[403, 404]\n"


#: The customer's page, by the search of the overview, and its change page in the project's admin.
PAGES_OF_CUSTOMER = """
found = client.post(reverse('admin:django_ratelimiter_search'), dict(q='customer:acm'), follow=True)
own = client.get(reverse('admin:shop_account_change', args=[1]))
for page, parts in (found, ('3 of 3', 'kind=user', 'kind=api_key')), (own, ('3 of 3', 'kind=customer&amp;value=1')):
    print([each for each in ('Acme', *parts) if each not in page.content.decode()])
"""


def test_a_customer_has_one_quota_by_key_and_by_each_of_its_users(reader: Reader) -> None:
    follow(reader, section(PAGES["docs/howto/identities.md"], "## Customers"))
    assert reader.shell(IN_PROCESS.format(asked=PAGES_OF_CUSTOMER)) == "[]\n[]\n"


#: A rule that matches each request.
SAVED = """
rules:
  all: {{mode: enforce, limits: [{{quota: {quota}, window_seconds: 60}}]}}
"""


def test_redis_is_told_of_rules_unless_others_were_saved_in_another_namespace(reader: Reader) -> None:
    def applied(quota: int) -> bool:
        """Return whether `apply` warns."""
        reader.add("all.yaml", SAVED.format(quota=quota), "w")
        return "Redis was not told" in reader.shell("python manage.py ratelimit apply all.yaml 2>&1")

    assert not applied(1)
    reader.add("mysite/settings.py", 'RATELIMITER["NAMESPACE"] += "-2"\n')
    assert applied(2)
    reader.shell(IN_PROCESS.format(asked="client.get('/x/')"))
    assert not applied(3)


def test_an_api_for_staff_does_what_its_page_shows(reader: Reader) -> None:
    reader.type(section(PAGES["docs/howto/rest-framework.md"], "## An API for staff").replace("NAME:PASSWORD", "me:x"))


def test_a_rules_file_is_checked_planned_and_applied_as_its_page_shows(reader: Reader) -> None:
    page = PAGES["docs/howto/rules-as-code.md"]
    file, shown = blocks(page, "yaml")[0], section(page, "## Check, plan, apply")
    reader.add("ratelimits.yaml", file)
    reader.add("wrong.yaml", file.replace("tier: free", "tier: fre"))
    reader.shell("python manage.py ratelimit apply ratelimits.yaml; sed -i 's/quota: 60,/quota: 90,/' ratelimits.yaml")
    for command, told in re.findall(r"(?m)^\$ (.*)\n((?:(?!\$|```).*\n)*)", shown):
        printed = reader.shell(f"{command} 2>&1 || true")
        assert OutputChecker().check_output(told, printed, ELLIPSIS), printed


RULE = """
rules:
  per-address: {mode: enforce, partition_by: [ip], limits: [
    {quota: 3, window_seconds: 3600, algorithm: sliding_window_log}]}
"""


@pytest.mark.skipif(not shutil.which("nginx"), reason="nginx is not installed")
def test_the_servers_of_a_site_count_a_caller_together_and_its_usage_is_collected(
    reader: Reader, redis_url: str, tmp_path: Path
) -> None:
    recipe, folder = section(PAGE, f"## {SERVERS}"), reader.folder
    reader.type(recipe, runs=False)
    settings = folder / "mysite/settings.py"
    settings.write_text(
        settings.read_text().replace("redis://127.0.0.1:6379/0", redis_url).replace('"schedule": 60', '"schedule": 1')
    )
    reader.add("ratelimits.yaml", RULE)
    reader.shell("python manage.py ratelimit apply ratelimits.yaml")

    ports = {name: free_port() for name in ("8000", "8001", "80")}
    [commands], nginx = blocks(recipe, "console"), reader.wrote["/etc/nginx/conf.d/mysite.conf"]
    for told, ours in ports.items():
        commands = re.sub(rf"\b{told}\b", str(ours), commands)
        nginx = re.sub(rf"(listen |:){told};", rf"\g<1>{ours};", nginx)
    nginx = nginx.replace("/srv/mysite", str(folder))
    gunicorn, uvicorn, celery = (("-m", *command.split()) for command in commands.splitlines())
    (tmp_path / "nginx.conf").write_text(
        f"daemon off; user {getpass.getuser()}; pid nginx.pid; events {{}} http {{ access_log off; {nginx} }}"
    )
    reader.shell("python manage.py collectstatic --noinput")

    def get(path: str, caller: str) -> int:
        with closing(HTTPConnection(HOST, ports["80"], timeout=60, source_address=(caller, 0))) as connection:
            connection.request("GET", path, headers={"Host": "localhost", "X-Forwarded-For": "203.0.113.9"})
            return connection.getresponse().status

    with ExitStack() as stack:
        for command, port in ((gunicorn, ports["8000"]), (uvicorn, ports["8001"])):
            stack.enter_context(serving(folder, port, *command))
        proxy = WatchedProcess(["nginx", "-e", "stderr", "-p", str(tmp_path), "-c", "nginx.conf"], tmp_path)
        stack.callback(proxy.stop)
        wait_until(lambda: get("/", "127.0.0.9"))
        asked = [("/hello/", "127.0.0.7"), ("/stream/", "127.0.0.7")] * 2 + [("/stream/", "127.0.0.8")]
        assert [get(*each) for each in asked] == [404, 404, 404, 429, 404]
        assert get("/static/admin/css/base.css", "127.0.0.7") == 200
        options = ("--loglevel", "INFO", "--schedule", str(tmp_path / "schedule"))
        worker = stack.enter_context(running(folder, *celery, *options, is_ready=lambda: True, **environment(folder)))
        wait_until(lambda: re.search(r"collect_usage\[.*succeeded", worker.output) or not worker.running)
        assert worker.running, worker.output


#: The views of the shop that has plans, and its resolver with a note of its calls.
URLS = """
from django.http import HttpResponse
from django.urls import path

from shop.models import Account

called = []


async def aplan_of(identity):
    called.append(identity.user_id or identity.api_key.pk)
    if identity.api_key:
        return identity.api_key.plan
    return (await Account.objects.aget(user_id=identity.user_id)).plan


urlpatterns = [path(f"{name}/", lambda _: HttpResponse(str(len(called)))) for name in ("api", "site", "called")]
"""

PLANS = """
import os
RATELIMITER |= {"TIER_CACHE_SECONDS": 3_600, "TIER_RESOLVER": os.environ.get("RESOLVER", "api_key.plan")}
"""

#: Two accounts; prints a key of each, and that of a session of the one that has the plan pro.
DATA = """
from django.contrib.auth.models import User
from django.test import Client
from shop.limits import new_key
from shop.models import Account

for plan in ("free", "pro"):
    user = User.objects.create_user(plan)
    print(new_key(Account.objects.create(user=user, plan=plan)))
client = Client()
client.force_login(user)
print(client.cookies["sessionid"].value)
"""

SITE_RULE = """
  site: {mode: enforce, path: /site/, path_kind: exact, partition_by: [user], limits: [
    {tier: free, quota: 30, window_seconds: 86400}, {tier: pro, quota: 60, window_seconds: 86400}]}
"""


GUNICORN = "gunicorn mysite.wsgi --bind 127.0.0.1:{port} --workers 1 --threads 8 --no-control-socket"
UVICORN = "uvicorn mysite.asgi:application --lifespan off --log-level warning --host 127.0.0.1 --port {port}"


def test_each_customer_has_the_limits_of_the_plan(reader: Reader) -> None:
    follow(reader, section(PAGE, f"## {PLANS_HEADING}"))
    [settings] = blocks(section(PAGES["docs/howto/rules-and-tiers.md"], "### If customers log in as well"), "python")
    reader.add("mysite/settings.py", settings + PLANS)
    reader.add("mysite/urls.py", URLS, "w")
    reader.add("ratelimits.yaml", SITE_RULE)
    reader.shell("python manage.py ratelimit apply ratelimits.yaml")
    free, pro, session = reader.shell(f"python manage.py shell -v 0 -c '{DATA}'").split()

    def get(path: str, **headers: str) -> tuple[str, str]:
        with closing(HTTPConnection(HOST, port, timeout=60)) as connection:
            connection.request("GET", path, headers=headers)
            response = connection.getresponse()
            return response.headers.get("X-RateLimit-Limit", ""), response.read().decode()

    for server, resolver, calls, site in (
        (GUNICORN, "api_key.plan", "0", "30"),
        (GUNICORN, "customer.plan", "0", "60"),
        (UVICORN, "mysite.urls.aplan_of", "3", "60"),
    ):
        port = free_port()
        with serving(reader.folder, port, "-m", *server.format(port=port).split(), RESOLVER=resolver):
            with ThreadPoolExecutor(8) as pool:
                found = pool.map(lambda key: get("/api/", Authorization=f"Api-Key {key}")[0], (free, pro) * 6)
                of_user = pool.map(lambda _: get("/site/", Cookie=f"sessionid={session}")[0], range(4))
            assert [*found] == ["3", "6"] * 6, (server, resolver)
            assert [*of_user] == [site] * 4, (server, resolver)
            assert get("/called/")[1] == calls
            assert "429" in get("/api/", Authorization="Api-Key unknown")[1]
