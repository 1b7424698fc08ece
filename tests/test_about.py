"""`manage.py ratelimit about`: what a report of an error needs, without secrets."""

from __future__ import annotations

import json
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from django_ratelimiter.backend import reset_engine
from django_ratelimiter.conf import without_secrets
from django_ratelimiter.exceptions import told_safely
from django_ratelimiter.management.about import about, lines_of

SECRET = "hunter2"


@pytest.mark.django_db
def test_servers_and_settings_without_secrets(settings: Any) -> None:
    up = "\n".join(lines_of(about()))
    assert re.search(r"^  Django: [56]\.\d", up, re.MULTILINE), up
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
    ],
)
def test_error_of_a_project_is_told_without_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, says: str
) -> None:
    (tmp_path / "wrong_settings.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises((RuntimeError, ValueError, SyntaxError)) as caught:
        import_module("wrong_settings")
    told = told_safely(caught.value)
    assert re.search(says, told), told
    assert SECRET not in told


@pytest.mark.parametrize("name", ["KEY_PREFIX", "KEY_FUNCTION", "REVERSE_KEY_FUNCTION"])
def test_the_prefix_of_keys_is_no_secret(name: str) -> None:
    assert without_secrets({name: "shop"}) == f"{{{name}: shop}}"
