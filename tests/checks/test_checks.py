"""The system checks: each one is bound, fires for its fault, has a hint, and is silent without the fault."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core import checks as django_checks
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.db import OperationalError, connection
from django.test import override_settings
from django.utils import timezone

from django_ratelimiter import checks
from django_ratelimiter.checks import project, views
from django_ratelimiter.checks.common import CHECKS, SYMPTOMS
from django_ratelimiter.middleware import RateLimitMiddleware
from django_ratelimiter.models import RuleLimit, RuleSetVersion, UsageBatch
from django_ratelimiter.rules.stored import storage, tables

from ..making import failing, make_rule

AUTHENTICATION = "django.contrib.auth.middleware.AuthenticationMiddleware"
MIDDLEWARE = "django_ratelimiter.middleware.RateLimitMiddleware"
SESSIONS = "django.contrib.sessions.middleware.SessionMiddleware"


def ids(messages: list[Any]) -> list[str]:
    """The ids that fired, without the common prefix. Each must have a hint."""
    assert all(message.hint for message in messages)
    return [message.id.removeprefix("django_ratelimiter.") for message in messages]


def test_every_check_is_registered_and_the_tests_project_passes() -> None:
    registered = django_checks.registry.registry.get_checks(include_deployment_checks=True)
    assert {*CHECKS, project.check_server} <= {*registered}
    assert django_checks.run_checks(tags=[checks.TAG]) == []


def test_every_id_is_seen_to_fire() -> None:
    source = "".join(module.read_text() for module in Path(checks.__file__).parent.glob("*.py"))
    tests = "".join(module.read_text() for module in Path(__file__).parents[1].glob("*/test_*.py"))
    numbers = re.findall(r'(?:check|message)\(\s*"(\w\d+)"', source)
    assert len(numbers) > 25
    for number in numbers:
        assert re.search(rf'["./]{number}\b', tests), number


def test_wrong_settings() -> None:
    with override_settings(RATELIMITER={"NAMSPACE": 1, "IPV4_PREFIX": 99, "TRUSTED_PROXIES": ["0.0.0.0/0"]}):
        unknown, wrong, everybody = project.check_settings()
    assert ids([unknown]) == ids([wrong]) == ["E001"]
    assert unknown.msg == "Unknown setting RATELIMITER['NAMSPACE']. Did you mean 'NAMESPACE'?"
    assert unknown.hint.startswith("The settings are ENABLED, ENGINE, ")
    assert wrong.msg == "RATELIMITER: IPV4_PREFIX is 99."
    assert wrong.hint == "It must be a whole number from 1 to 32."
    assert everybody.hint.startswith("It must be networks of your own proxies: 0.0.0.0/0 is everybody, so callers ")
    with override_settings(RATELIMITER={"REDIS_URL": "redis://127.0.0.1"}):
        [address] = project.check_settings()
    assert address.msg == (
        "Unknown setting RATELIMITER['REDIS_URL']. "
        "Name the Redis server in CACHES, and that entry of CACHES in CACHE_ALIAS."
    )


@pytest.mark.parametrize(
    ("written", "ends"),
    [
        ("TRUSTED_PROXY", "Did you mean 'TRUSTED_PROXIES'?"),
        ("cache_alias", "Did you mean 'CACHE_ALIAS'?"),
        ("COLOUR", "['COLOUR']."),
        (5, "['5']."),
    ],
)
def test_an_unknown_setting_is_told_with_the_name_that_is_like_it(written: object, ends: str) -> None:
    with override_settings(RATELIMITER={written: True}):
        [error] = project.check_settings()
    assert error.msg.endswith(ends)


@pytest.mark.parametrize(
    "wrong", [["rl"], {"CACHE_ALIAS": 5}, {"ENGINE": 5}, {"TRUSTED_PROXIES": "10.0.0.0/8", "CACHE_ALIAS": "ratelimit"}]
)
def test_a_wrong_entry_is_told_once_and_breaks_no_other_check(wrong: Any) -> None:
    with override_settings(RATELIMITER=wrong, USE_X_FORWARDED_HOST=True):
        assert ids(django_checks.run_checks(tags=[checks.TAG])) == ["E001"]


@pytest.mark.parametrize("debug", [False, True])
@override_settings(RATELIMITER={})
def test_memory_engine_is_told_by_check_and_not_by_runserver(debug: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    with override_settings(DEBUG=debug):
        [message] = project.check_memory()
        assert (ids([message]), SYMPTOMS in (message.hint or "")) == (["W002"], True)
        monkeypatch.setattr(sys, "argv", ["manage.py", "--settings=x", "runserver", "8000"])
        assert project.check_memory() == []


def test_the_page_of_symptoms_is_where_the_docs_are() -> None:
    root = Path(__file__).parents[2]
    docs = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]["urls"]["Documentation"]
    site, _, page = SYMPTOMS.partition("/page/")
    assert (site, (root / "docs" / page).with_suffix(".md").is_file()) == (docs, True)


@pytest.mark.parametrize(
    ("name", "file", "lists"),
    [
        ("Their_Fork", "RECORD", b"django_ratelimiter/storage.py,,\ntheirs/x.py,,\n"),
        ("their-fork", "installed-files.txt", b"../django_ratelimiter/storage.py\n"),
        ("their-fork", "top_level.txt", b"django_ratelimiter\n"),
        ("django_ratelimiter", "RECORD", b"__editable__.django_ratelimiter.pth,,\n"),
    ],
)
def test_other_distribution_with_our_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, file: str, lists: bytes
) -> None:
    install(tmp_path, monkeypatch, name, file, lists)
    [message] = project.check_distributions()
    assert ids([message]) == ["E014"]
    assert message.msg.startswith(f"{name.replace('_', '-').lower()} installs files in the package django_ratelimiter")


def test_distribution_whose_files_cannot_be_read_is_no_silence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "broken", "RECORD", b"\xff")
    [message] = project.check_distributions()
    assert (ids([message]), "codec can't decode" in message.msg) == (["E014"], True)


@pytest.mark.parametrize("name", ["unrelated", "django-tiered-ratelimiter"])
def test_distribution_of_another_package_and_our_own_are_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    package = "django_ratelimiter" if name.startswith("django") else "django_ratelimiter_theirs"
    install(tmp_path, monkeypatch, name, "RECORD", f"{package}/__init__.py,,\nx/django_ratelimiter/a.py,,\n".encode())
    assert project.check_distributions() == []


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, file: str, lists: bytes) -> None:
    """Put the metadata of a distribution on the path, as an installation leaves them."""
    kept = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    kept.mkdir()
    (kept / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (kept / file).write_bytes(lists)
    monkeypatch.syspath_prepend(folder)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        (None, "CACHES has no 'counters'."),
        ({"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}, "'counters' is not a Redis cache; "),
        ({"BACKEND": "no.such.Cache"}, "CACHES['counters']: "),
        ({"LOCATION": "redis://:secret/x@localhost/0"}, "CACHES['counters']['LOCATION'] cannot be read as an address."),
        ({}, ""),
    ],
)
def test_alias_without_a_usable_redis_is_an_error(fields: dict[str, Any] | None, says: str) -> None:
    entry = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://localhost/0"}
    caches = {} if fields is None else {"counters": {**entry, **fields}}
    with override_settings(CACHES=caches, RATELIMITER={"CACHE_ALIAS": "counters"}):
        messages = project.check_engine()
    assert ids(messages) == (["E002"] if says else [])
    assert all(each.msg.startswith(f"RATELIMITER['CACHE_ALIAS']: {says}") for each in messages)


def test_an_engine_of_ones_own_needs_no_alias() -> None:
    with override_settings(RATELIMITER={"ENGINE": "tests.test_conf.own_engine", "CACHE_ALIAS": "elsewhere"}):
        assert project.check_engine() == []


class OwnMiddleware(RateLimitMiddleware):
    """A project's own subclass."""


@pytest.mark.parametrize(
    "middleware",
    [
        [SESSIONS, AUTHENTICATION, MIDDLEWARE],
        [SESSIONS, AUTHENTICATION, "tests.checks.test_checks.OwnMiddleware"],
        [MIDDLEWARE],
        [AUTHENTICATION, "no.such.Middleware", MIDDLEWARE],
    ],
)
def test_the_middleware_in_its_place(middleware: list[str]) -> None:
    with override_settings(MIDDLEWARE=middleware):
        assert project.check_middleware() == project.check_order() == []


def test_a_missing_middleware() -> None:
    with override_settings(MIDDLEWARE=[SESSIONS, AUTHENTICATION]):
        [message] = project.check_middleware()
    assert ids([message]) == ["W001"]
    assert "only views with @ratelimit or a throttle class of this package are limited" in message.msg
    assert SYMPTOMS in (message.hint or "")


@pytest.mark.parametrize("own", [MIDDLEWARE, "tests.checks.test_checks.OwnMiddleware"])
def test_a_middleware_before_authentication(own: str) -> None:
    with override_settings(MIDDLEWARE=[SESSIONS, own, AUTHENTICATION]):
        [message] = project.check_order()
    assert (ids([message]), SYMPTOMS in (message.hint or "")) == (["E005"], True)
    with override_settings(MIDDLEWARE=[own, SESSIONS, AUTHENTICATION]):
        assert ids(project.check_order()) == ["E005"]


PROXIED = [{"USE_X_FORWARDED_HOST": True}, {"SECURE_PROXY_SSL_HEADER": ("HTTP_X_FORWARDED_PROTO", "https")}]


@pytest.mark.django_db
@pytest.mark.parametrize("signs", PROXIED)
@pytest.mark.parametrize("fields", [{"partition_by": ["ip"]}, {"partition_by": ["user"], "missing_partition": "ip"}])
def test_an_address_asked_for_behind_an_untrusted_proxy(signs: dict[str, Any], fields: dict[str, Any]) -> None:
    make_rule("addresses", **fields)
    with override_settings(**signs):
        messages = project.check_proxies()
    assert ids(messages) == ["W005"]
    assert "addresses" in messages[0].msg
    assert SYMPTOMS in (messages[0].hint or "")
    assert next(iter(signs)) in messages[0].msg


@pytest.mark.django_db
@pytest.mark.parametrize("trusted", [[], 1, ["10.0.0.0/8"], ["unix"]])
def test_no_address_asked_for_or_a_trusted_proxy(trusted: Any) -> None:
    make_rule("users", partition_by=["user"])
    make_rule("everybody", missing_partition="ip")
    make_rule("sleeping", partition_by=["ip"], mode="off" if not trusted else "enforce")
    assert project.check_proxies() == []
    with override_settings(USE_X_FORWARDED_HOST=True, RATELIMITER={"TRUSTED_PROXIES": trusted}):
        assert project.check_proxies() == []


@pytest.mark.django_db
def test_bad_rows_are_told_with_their_reasons() -> None:
    make_rule("good")
    assert project.check_rules() == []
    bad = make_rule("bad")
    RuleLimit.objects.filter(rule=bad).update(algorithm="magic")
    messages = project.check_rules()
    assert ids(messages) == ["W006"]
    assert messages[0].msg.startswith("Rule bad is not in force: ")
    assert "magic" in messages[0].msg


def test_without_a_database_the_checks_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (OperationalError("no such host"), ImproperlyConfigured("no ENGINE"), RuntimeError("not allowed")):
        monkeypatch.setattr(connection.introspection, "table_names", failing(error))
        with override_settings(USE_X_FORWARDED_HOST=True):
            assert (views.check_views(), project.check_proxies(), project.check_rules()) == ([], [], [])


@pytest.mark.django_db
def test_before_the_migration_the_checks_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    make_rule("addresses", partition_by=["ip"])
    RuleLimit.objects.update(algorithm="magic")
    monkeypatch.setattr(tables, "_seen", set())
    monkeypatch.setattr(tables, "_has_table", lambda *table: False)
    with override_settings(USE_X_FORWARDED_HOST=True):
        assert (project.check_proxies(), project.check_rules()) == ([], [])


@pytest.mark.django_db
def test_plain_manage_py_check_tells_of_bad_rows() -> None:
    columns = "slug, name, mode, methods, path, path_kind, view_name, scope, partition_by, missing_partition"
    with connection.cursor() as sql:
        sql.execute(
            f"INSERT INTO django_ratelimiter_rule ({columns}, failure_policy, cost, priority, message, description)"
            " VALUES ('odd', 'Odd', 'enforce', '[]', '(', 'riddle', '', '', '[]', 'skip', 'local', 1, 100, '', '')"
        )
    told = StringIO()
    call_command("check", stdout=told, stderr=told)
    assert "(django_ratelimiter.W006) Rule odd is not in force: " in told.getvalue()
    assert "riddle" in told.getvalue()


def test_plain_manage_py_check_passes_before_the_first_migration(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "django", "check", "--settings=tests.settings", "--pythonpath=."]
    environment = {**os.environ, "TEST_DATABASE_URL": f"sqlite://{tmp_path}/new.sqlite3"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    assert "(django_ratelimiter.W016)" in done.stderr
    assert "1 issue (0 silenced)" in done.stderr


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("has_table", "argv", "fires"),
    [(True, "check", False), (False, "check", True), (False, "migrate", False), (None, "check", False)],
)
def test_missing_tables(has_table: bool | None, argv: str, fires: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """None: the database does not answer; whether it has tables is not known."""

    def look(*_table: Any) -> bool:
        if has_table is None:
            raise OperationalError("no such host")
        return has_table

    monkeypatch.setattr(tables, "_seen", set())
    monkeypatch.setattr(tables, "_has_table", look)
    monkeypatch.setattr(storage, "primary", lambda: "limits")  # as by a router
    monkeypatch.setattr(sys, "argv", ["manage.py", argv])
    found = [(each.id, "`manage.py migrate --database limits`" in str(each.hint)) for each in project.check_tables()]
    assert found == [("django_ratelimiter.W016", True)] * fires


@pytest.mark.parametrize("name", ["django_ratelimiter", "django_ratelimiter.apps.DjangoRatelimiterConfig"])
def test_tables_of_each_tenant(name: str, settings: Any) -> None:
    assert project.check_tenants() == []
    settings.TENANT_APPS = ["django.contrib.auth", name]
    assert ids(project.check_tenants()) == ["E011"]


@pytest.mark.django_db
@pytest.mark.parametrize(("hours", "fires"), [((), True), ((25,), True), ((25, 23), False)])
def test_nothing_collected_for_a_day(
    hours: tuple[int, ...], fires: bool, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for each in hours:
        UsageBatch.objects.create(batch_id=str(each))
        UsageBatch.objects.filter(batch_id=str(each)).update(collected_at=timezone.now() - timedelta(hours=each))
    assert project.check_collecting() == [], "without rules, there is nothing to collect"
    make_rule("everything")
    RuleSetVersion.objects.create(number=1, epoch=1, snapshot={})
    RuleSetVersion.objects.update(created_at=timezone.now() - timedelta(days=3))
    messages = project.check_collecting()
    assert ids(messages) == ["W013"] * fires
    assert [message.msg for message in messages if "since 2" not in message.msg] == []
    RuleSetVersion.objects.update(created_at=timezone.now())
    assert ids(project.check_collecting()) == ["W013"] * (fires and hours != ()), "rules of today have time"
    monkeypatch.setattr(project, "_since", failing(OperationalError()))
    assert project.check_collecting() == []
    settings.RATELIMITER = {"CACHE_ALIAS": None}
    assert project.check_collecting() == []
