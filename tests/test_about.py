"""`python -m django_ratelimiter`: what a report of an error needs, without secrets."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from django_ratelimiter.backend import reset_engine
from django_ratelimiter.conf import without_secrets
from django_ratelimiter.management.about import about, lines_of

from .pages import ROOT

SECRET = "hunter2"


@pytest.mark.parametrize(
    ("settings_module", "says"),
    [
        (None, "\nproblem: DJANGO_SETTINGS_MODULE is not set. Set it, or run `python manage.py ratelimit about`.\n"),
        ("nowhere", "\nproblem: The project cannot be loaded: ModuleNotFoundError: No module named 'nowhere'\n"),
        ("tests.settings", "\nredis: does not answer: "),
    ],
)
def test_versions_are_shown_whatever_is_missing(settings_module: str | None, says: str) -> None:
    environment = {} if settings_module is None else {"DJANGO_SETTINGS_MODULE": settings_module}
    command = [sys.executable, "-m", "django_ratelimiter"]
    text = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout
    assert re.search(r"^  Django: [56]\.\d", text, re.MULTILINE)
    assert says in text


@pytest.mark.django_db
def test_servers_and_settings_without_secrets(settings: Any) -> None:
    up = "\n".join(lines_of(about()))
    assert re.search(r"^redis: (redis|valkey) \d+\.\d+\.\d+, standalone: redis", up, re.MULTILINE), up
    pool = {"username": SECRET, "any": [f"redis://:{SECRET}@a", ("b", 26379)]}
    settings.CACHES = settings.CACHES | {
        "gone": {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": f"redis://app:{SECRET}@127.0.0.1:1/0?password={SECRET}",
            "OPTIONS": {"PASSWORD": SECRET, "CONNECTION_POOL_KWARGS": pool},
        },
    }
    own = {"CACHE_ALIAS": "gone", "API_KEY_HEADER": "X-Key", "DENIAL_MEMORY": 2}
    secrets = {"HASH_KEY": SECRET, "HASH_KEY_FALLBACKS": [SECRET.encode()], "API_TOKEN": SECRET}
    settings.RATELIMITER = own | secrets | {"SHARDS": 64}  # the default
    reset_engine()
    found = about()
    assert found["redis"].startswith("does not answer: ")
    shown = {f"RATELIMITER[{name!r}]": str(value) for name, value in own.items()}
    hidden = {f"RATELIMITER[{name!r}]": "(hidden)" for name in secrets} | {"RATELIMITER['API_TOKEN']": "is unknown"}
    assert {name: value for name, value in found["settings"].items() if name[:4] == "RATE"} == shown | hidden
    assert SECRET not in json.dumps(found) + "\n".join(lines_of(found))
    assert "127.0.0.1:1/0" in json.dumps(found)


@pytest.mark.parametrize(
    "address",
    ["redis://:{}@a", "rediss://u:{}/@b@a:6379", "unix://:{}@/x", "redis://a?password={}", ":{}@a", "a:{}/b@a"],
)
def test_a_password_in_an_address_is_hidden(address: str) -> None:
    assert SECRET not in without_secrets([{"any": (address.format(SECRET),)}])


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (f"raise RuntimeError('PASSWORD={SECRET}')", r"RuntimeError at \S+wrong_settings\.py:1 \(its message may "),
        (f"{SECRET} = int('{SECRET}')", r"ValueError at \S+wrong_settings\.py:1 \(its message may "),
        (f"x = '{SECRET}", r"SyntaxError: unterminated string literal .*wrong_settings\.py, line 1"),
        ("INSTALLED_APPS = ['no_such_app']; SECRET_KEY = 'x'", r"ModuleNotFoundError: No module named 'no_such_app'"),
        ("INSTALLED_APPS = 2 * ['django.contrib.auth']; SECRET_KEY = 'x'", r"Application labels aren't unique"),
    ],
)
def test_settings_that_raise_are_told_without_values(tmp_path: Path, source: str, says: str) -> None:
    (tmp_path / "wrong_settings.py").write_text(source)
    environment = {"DJANGO_SETTINGS_MODULE": "wrong_settings", "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    command = [sys.executable, "-m", "django_ratelimiter"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert re.search(says, done.stdout), done
    assert SECRET not in done.stdout + done.stderr


@pytest.mark.parametrize("name", ["KEY_PREFIX", "KEY_FUNCTION", "REVERSE_KEY_FUNCTION"])
def test_the_prefix_of_keys_is_no_secret(name: str) -> None:
    assert without_secrets({name: "shop"}) == f"{{{name}: shop}}"
