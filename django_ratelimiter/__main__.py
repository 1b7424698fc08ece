"""`python -m django_ratelimiter`: what a report of an error needs, also where the settings cannot be loaded."""

from __future__ import annotations

import argparse
import json
import os

import django

from .exceptions import told_safely
from .management.about import about, lines_of

_DESCRIPTION = (
    "Show what a report of an error needs: the versions of Python, packages and servers, and the settings that differ "
    "from their defaults. Passwords and keys are hidden; hosts and networks are shown. The project is the one in "
    "DJANGO_SETTINGS_MODULE; if it cannot be loaded, the report says why."
)


def main() -> None:
    """Write the versions and settings, without secrets. The exit code is 0 whatever is missing."""
    parser = argparse.ArgumentParser(prog="python -m django_ratelimiter", description=_DESCRIPTION)
    parser.add_argument("--json", action="store_true", help="Write one JSON document.")
    as_json = parser.parse_args().json
    problem = "DJANGO_SETTINGS_MODULE is not set. Set it, or run `python manage.py ratelimit about`."
    if "DJANGO_SETTINGS_MODULE" in os.environ:
        problem = ""
        try:
            django.setup()
        except Exception as error:  # whatever the project does wrong
            problem = f"The project cannot be loaded: {told_safely(error)}"
    found = about(problem)
    print(json.dumps(found, indent=2) if as_json else "\n".join(lines_of(found)))


if __name__ == "__main__":
    main()
