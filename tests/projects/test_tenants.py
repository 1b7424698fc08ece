"""Tenants of django-tenants with their own users: rules apply in all of them, and users with one key stay apart."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from example_project.watched_process import ServerError
from tests.databases import postgres_url


@pytest.mark.once
def test_users_of_two_tenants_with_one_key(tmp_path: Path) -> None:
    pytest.importorskip("django_tenants", reason="django-tenants is not installed")
    environment = {key: value for key, value in os.environ.items() if key != "DJANGO_SETTINGS_MODULE"}
    try:
        with postgres_url() as url:
            command = [sys.executable, "-m", "tests.projects.tenants.journey", url]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    except ServerError as error:
        pytest.skip(str(error))
    assert done.returncode == 0, done.stderr[-6_000:]
    assert json.loads(done.stdout) == {
        "keys": [1, 1],
        "counted": [[200, 200, 429]] * 2,
        "caller": {"user": "acme:1"},
        "tiers": [[200], [429]],
        "denied": [[200], [403]],
        "checks": [],
        "rejected": ["django_ratelimiter.E011"],
    }
