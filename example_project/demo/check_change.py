"""Second check: a rule is changed in the admin, and the next request on each worker must use it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from ..catalogue import ADMIN, PASSWORD, RULES, TIERS
from .admin_client import Admin
from .console import Table, heading, note, say
from .scenario import FREE_KEYS, Stream
from .servers import WORKERS, DemoError, Site
from .traffic import Answer, Connection


class Change(NamedTuple):
    """A quota to save, and whether a key that has used up the old quota must be allowed afterwards."""

    quota: int
    admitted: bool


RULE: Final = next(rule for rule in RULES if rule.slug == "orders-per-key")
TIER: Final = next(tier for tier in TIERS if tier.slug == "free")
CALLER: Final = FREE_KEYS[0]
STREAM: Final = Stream("/orders/", (CALLER,), 1)
CHANGES: Final = (Change(60, True), Change(20, False))
#: Requests to each worker after the first one.
FOLLOWING: Final = 4

_COLUMNS: Final = {"saved": -8, "worker": 8, "the very next request": -21, "the four after it": -17, "expected": -8}
_WORDS: Final = {200: "200 allowed", 429: "429 rejected", 0: "no answer"}


def check_change(site: Site, answers: list[Answer]) -> bool:
    """Raise a used-up quota, then lower it below the usage so far. True if each worker uses it at once."""
    heading("2. A rule is changed in the admin, through its own form")
    admin = Admin(site.url)
    admin.log_in(ADMIN, PASSWORD)
    workers = _connections(site)
    old = RULE.limits_for(TIER.slug)[0].quota
    spent = sum(one.admitted for one in answers if one.caller == CALLER and one.stream.path == STREAM.path)
    note(f"{RULE.slug}, tier {TIER.slug}: {old}/day, and {CALLER.api_key} has used {spent} of them.")
    note("A connection to each worker is open before the change; it carries the very next request after it.")
    say()
    table = Table(_COLUMNS)
    agrees = True
    for change in CHANGES:
        admin.edit_limit(RULE.name, TIER.name, change.quota)
        after = {process: [connection.send(STREAM, CALLER)] for process, connection in workers.items()}
        for process, seen in after.items():
            seen += [workers[process].send(STREAM, CALLER) for _ in range(FOLLOWING)]
            obeyed = all(one.admitted is change.admitted and one.process == process and not one.error for one in seen)
            told = (_told(seen[:1]), _told(seen[1:]), "allowed" if change.admitted else "rejected")
            table.row(f"{change.quota}/day", str(process), *told, agrees=obeyed)
            agrees = agrees and obeyed
            answers += seen
    for connection in workers.values():
        connection.close()
    return agrees


def _connections(site: Site) -> dict[int, Connection]:
    """Return an open connection to each worker, by its process id. Requests a page that no rule matches."""
    found: dict[int, Connection] = {}
    index = Stream("/", (CALLER,), 1)
    for _ in range(1_000):
        connection = Connection(site.port)
        process = connection.send(index, CALLER).process
        if process and process not in found:
            found[process] = connection
        else:
            connection.close()
        if len(found) == WORKERS:
            return found
    raise DemoError(f"Of {WORKERS} workers only {len(found)} answered 1,000 connections.")


def _told(answers: Iterable[Answer]) -> str:
    """Return the different answers, each once."""
    return ", ".join(dict.fromkeys(_WORDS.get(one.status, str(one.status)) for one in answers))
