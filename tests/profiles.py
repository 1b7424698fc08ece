"""Profiles of hypothesis, by how long it searches.

HYPOTHESIS_PROFILE=nightly (`make test ARGS=--long`) and "long" search longer than the default does, "brief" shorter.
"""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("brief", deadline=None, max_examples=15)
settings.register_profile("short", deadline=None, max_examples=40)
settings.register_profile("nightly", deadline=None, max_examples=400)
settings.register_profile("long", deadline=None, max_examples=5_000)


def load(default: str) -> None:
    """Search as long as HYPOTHESIS_PROFILE says."""
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", default))
