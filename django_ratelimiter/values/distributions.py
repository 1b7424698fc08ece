"""Other distributions that install the same package: installing or uninstalling one changes files of the other."""

from __future__ import annotations

import re
from importlib import metadata
from typing import Final

OURS: Final = "django-tiered-ratelimiter"
#: On the package index, the one other distribution with this package.
THEIRS: Final = "django-ratelimiter"
#: What to do about it.
REMEDY: Final = f"Uninstall both, then install ours again: `pip uninstall {THEIRS} {OURS}`, then `pip install {OURS}`."

#: Lists of files, or of packages. The first that a distribution has is read.
_LISTS: Final = ("RECORD", "installed-files.txt", "top_level.txt")
_FILE_OF_OURS: Final = re.compile(r"^(\.\.[/\\])*django_ratelimiter([/\\]|$)", re.MULTILINE)


def others() -> tuple[str, ...]:
    """Return the names of the installed distributions that have files in this package, without ours.

    One that lists no files, as some systems and editable installs have them, is only found by the name `THEIRS`.
    """
    listing = [each for each in metadata.distributions() if _FILE_OF_OURS.search(_list_of(each))]
    names = {each.name.replace("_", "-").lower() for each in (*listing, *metadata.distributions(name=THEIRS))}
    return tuple(sorted(names - {OURS}))


def _list_of(distribution: metadata.Distribution) -> str:
    return next(filter(None, map(distribution.read_text, _LISTS)), "")
