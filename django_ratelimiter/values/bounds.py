"""Bounds of what people send: how long a text is, what JSON may hold, and how much of either an answer repeats.

Each input of the admin and of a command is compared with them before it is parsed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from difflib import get_close_matches
from heapq import nsmallest
from itertools import islice
from typing import Any, Final

#: Maximum length of a text: a field of a form, a line of a log.
MAX_TEXT: Final = 65_536
#: Maximum length of a text that is searched for. SQLite takes 1,000 words at most.
MAX_SEARCH: Final = 500
#: Maximum number of limits of one rule, of all tiers together.
MAX_LIMITS: Final = 100
#: Maximum number of names that one sentence lists.
MAX_NAMES: Final = 10
#: Maximum number of errors, and of changes, that one answer lists.
MAX_LISTED: Final = 100

#: Similar names are searched for among so many, and compared letter by letter with so many of them.
_MAX_SEARCHED: Final = 2_000
_MAX_COMPARED: Final = 50
#: Longer words are compared by their beginning.
_MAX_WORD: Final = 100


def json_from(text: str) -> Any:
    """Return the JSON in a text. Raises ValueError, also if it is nested too deeply or holds half a character."""
    try:
        found = json.loads(text)
        if "\\ud" in text or "\\uD" in text or not text.isascii():
            json.dumps(found, ensure_ascii=False, default=str).encode()  # not half a UTF-16 pair
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return found


def closest(word: str, names: Iterable[str], cutoff: float = 0.6) -> str:
    """Return the most similar of these names; empty = none is similar."""
    word = word[:_MAX_WORD]
    letters = {*word}
    searched = islice((name for name in names if len(name) <= 2 * _MAX_WORD), _MAX_SEARCHED)
    likely = nsmallest(_MAX_COMPARED, searched, key=lambda name: (len({*name} ^ letters), abs(len(name) - len(word))))
    return next(iter(get_close_matches(word, likely, n=1, cutoff=cutoff)), "")
