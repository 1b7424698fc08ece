"""`python -m django_ratelimiter`: what a report of an error needs, also where the settings cannot be loaded."""

from __future__ import annotations

import argparse
import json
import os

import django

from .management.about import about, lines_of


def main() -> None:
    """Write the versions and settings, without secrets. The exit code is 0 whatever is missing."""
    parser = argparse.ArgumentParser(prog="python -m django_ratelimiter", description=about.__doc__)
    parser.add_argument("--json", action="store_true", help="Write one JSON document.")
    as_json = parser.parse_args().json
    problem = "DJANGO_SETTINGS_MODULE is not set. Set it, or run `python manage.py ratelimit about`."
    if "DJANGO_SETTINGS_MODULE" in os.environ:
        problem = ""
        try:
            django.setup()
        except Exception as error:  # whatever the project does wrong
            problem = f"The project cannot be loaded: {type(error).__name__}: {error}"
    found = about(problem)
    print(json.dumps(found, indent=2) if as_json else "\n".join(lines_of(found)))


if __name__ == "__main__":
    main()
