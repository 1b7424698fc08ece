"""Apply a rules file in a process that is killed at one point after the other: `python -m tests.rules.files.killed`.

Arguments: the file that holds at first, and the one that is applied. For each point it writes a line: what the process
was about to do or had just done, and whether the database holds the "old" or the "new" rules after it. Fails for any
others, and for a version that does not say what the rows say.
"""

from __future__ import annotations

import os
import signal
import sys
from itertools import count
from typing import Any, NoReturn

import django


class _Killer:
    """Kills this process at its Nth point: before or after a statement that is no SELECT, or a commit."""

    def __init__(self, at: int, pipe: int) -> None:
        self.left, self.pipe = at, pipe

    def pass_by(self, what: str) -> None:
        if self.left == 0:
            os.write(self.pipe, what.encode())
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1

    def statement(self, execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if sql.lstrip().upper().startswith("SELECT"):
            return execute(sql, params, many, context)
        name = " ".join(sql.split()[:3])
        self.pass_by(f"before {name}")
        found = execute(sql, params, many, context)
        self.pass_by(f"after {name}")
        return found


def _apply(path: str, at: int, pipe: int) -> NoReturn:
    from django.db import connection

    from django_ratelimiter.rules.files.planning import apply_file
    from django_ratelimiter.rules.files.texts import load

    killer, commit = _Killer(at, pipe), connection.commit

    def commits() -> None:
        killer.pass_by("before COMMIT")
        commit()
        killer.pass_by("after COMMIT")

    connection.commit = commits  # type: ignore[method-assign]
    with connection.execute_wrapper(killer.statement):
        apply_file(load(path), delete=True)
    os._exit(0)


def _state() -> Any:
    """Return the rules of the rows, after it was seen that the version in force says the same.

    Without generations: a rule that comes back starts from zero each time.
    """
    from django_ratelimiter.rules.stored import storage
    from django_ratelimiter.rules.stored.compiler import snapshot_of_rows
    from django_ratelimiter.rules.stored.history.changes import by_slug

    rows, version = by_slug(snapshot_of_rows()), storage.committed_version()
    stored = storage.snapshots(version).values_list("snapshot", flat=True).get()
    assert by_slug(stored) == rows, f"version {version} does not say what the rows say"
    for rule in rows[1].values():
        for limit in rule["limits"]:
            del limit["generation"]
    return rows


def main() -> None:
    """Kill at all points."""
    django.setup()
    from django.db import connection

    from django_ratelimiter.rules.files.planning import apply_file
    from django_ratelimiter.rules.files.texts import load

    old, new = sys.argv[1:]
    states = {}
    for name, path in (("new", new), ("old", old)):
        apply_file(load(path), delete=True)
        states[name] = _state()
    for at in count():
        connection.close()
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            _apply(new, at, writing)
        os.close(writing)
        _, status = os.waitpid(child, 0)
        what = os.read(reading, 1_000).decode()
        os.close(reading)
        found = _state()
        names = [name for name, state in states.items() if state == found]
        assert names, f"a mixture, when it was killed {what}: {found}"
        print(f"{what or 'not killed'}: {names[0]}", flush=True)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0, "it failed"
            return
        apply_file(load(old), delete=True)


if __name__ == "__main__":
    main()
