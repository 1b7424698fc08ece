"""A process that collects usage when told, and dies or halts where told; the crash tests' other end.

Each line on stdin starts one collection, in a fork of its own:
  kill N    it kills itself with SIGKILL before its step N
  pause N   it waits before its step N until a further line comes
  run       it does neither of these
It answers with a line for each step that it comes to, "step NAME", with "paused", and at last with "ended CODE".
A step is whatever changes something outside: a call of the engine's usage methods, an SQL statement, a commit.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any


def tell(line: str) -> None:
    """Print a line in one piece: with PYTHONUNBUFFERED, `print` writes word by word, and whoever dies cuts it off."""
    os.write(sys.stdout.fileno(), f"{line}\n".encode())


class Steps:
    """Counts the steps of a collection, and does `what` before the one with the number `fatal`."""

    def __init__(self, what: str, fatal: int) -> None:
        self.what = what
        self.fatal = fatal
        self.passed = 0

    def reach(self, name: str) -> None:
        tell(f"step {name}")
        if self.passed == self.fatal:
            if self.what == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            tell("paused")
            os.read(sys.stdin.fileno(), 100)
        self.passed += 1

    def watch(self, owner: Any, method: str) -> None:
        """Make each call of the method a step."""
        original: Callable[..., Any] = getattr(owner, method)

        def watched(*args: Any, **kwargs: Any) -> Any:
            self.reach(method)
            return original(*args, **kwargs)

        setattr(owner, method, watched)


def collect_in_steps(steps: Steps) -> None:
    """Run one collection. The steps are told from the outside: nothing in the package knows of them."""
    from django.db import connection

    from django_ratelimiter.backend import get_engine
    from django_ratelimiter.usage.collector.collect import collect

    for method in ("publish", "take_usage", "read_usage", "drop_usage"):
        steps.watch(get_engine(), method)
    for method in ("hours", "top_partitions", "drop_top", "samples", "drop_samples"):
        steps.watch(get_engine().partitions, method)  # type: ignore[attr-defined]
    steps.watch(connection, "_commit")

    def before_sql(execute: Any, sql: str, *args: Any) -> Any:
        steps.reach(" ".join(sql.replace("`", '"').split()[:3]))
        return execute(sql, *args)

    with connection.execute_wrapper(before_sql):
        collect()
    steps.reach("end")


def main() -> None:
    """Fork for each line, so that Django is loaded once and every collection has connections of its own."""
    import django

    django.setup()
    while line := sys.stdin.readline():
        what, _, number = line.strip().partition(" ")
        child = os.fork()
        if child == 0:
            collect_in_steps(Steps(what, int(number) if what in ("kill", "pause") else -1))
            os._exit(0)
        _pid, status = os.waitpid(child, 0)
        tell(f"ended {os.waitstatus_to_exitcode(status)}")


if __name__ == "__main__":
    main()
