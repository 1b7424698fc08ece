"""A project without the REST framework never meets the API."""

from __future__ import annotations

import subprocess
import sys

WITHOUT_FRAMEWORK = """
import sys
from importlib.abc import MetaPathFinder

class Reject(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"rest_framework", "drf_spectacular"}:
            raise ImportError(f"{name} is not here")

sys.meta_path.insert(0, Reject())

import django
from django.conf import settings
from tests import settings as tests

apps = [app for app in tests.INSTALLED_APPS if app != "rest_framework"]
settings.configure(**{name: value for name, value in vars(tests).items() if name.isupper()} | {"INSTALLED_APPS": apps})
django.setup()
from django.core.management import call_command
call_command("check")
print([name for name in sys.modules if name.startswith("django_ratelimiter.api")])
"""


def test_it_is_not_imported() -> None:
    done = subprocess.run([sys.executable, "-W", "error", "-c", WITHOUT_FRAMEWORK], capture_output=True, text=True)
    assert (done.stdout.splitlines()[-1:], done.returncode) == (["[]"], 0), done.stderr
