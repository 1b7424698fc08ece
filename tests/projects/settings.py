"""The settings of the tests, with what PROJECT says instead: JSON of settings by name.

DATABASE in it: options of the database that differ. LIMITS: a file, the database "limits" beside it.
"""

import json
import os

from tests.settings import *  # noqa: F403
from tests.settings import DATABASES

ROOT_URLCONF = "tests.projects.urls"

PROJECT = json.loads(os.environ.get("PROJECT", "{}"))
DATABASES["default"] |= PROJECT.pop("DATABASE", {})
if "LIMITS" in PROJECT:
    name = PROJECT.pop("LIMITS")
    DATABASES["limits"] = {"ENGINE": "django.db.backends.sqlite3", "NAME": name, "TEST": {"NAME": name}}
globals().update(PROJECT)
