"""The processes under load, and what each of them holds: memory and descriptors, as the kernel counts them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from example_project.redis_server import HOST, WatchedProcess, free_port
from tests.clusters import Cluster
from tests.system.site import environment_of, running

#: The C library keeps what is given back to it, more in each thread and for each large block that was, and then cannot
#: be told from what Python holds. So it shall give it back to the system.
MALLOC: Final = {"MALLOC_ARENA_MAX": "2", "MALLOC_TRIM_THRESHOLD_": "131072", "MALLOC_MMAP_THRESHOLD_": "131072"}


class Held(NamedTuple):
    """memory: KiB that only this process has. descriptors: open files and sockets."""

    memory: int
    descriptors: int


class Stack(NamedTuple):
    """A site under gunicorn and under uvicorn, and who operates it. ports: of the two. processes: by what they are."""

    ports: tuple[int, int]
    processes: dict[str, WatchedProcess]

    def workers(self) -> dict[str, int]:
        """Return the process ids of all that is to be looked at; gunicorn's workers come and go."""
        found = {name: process.pid for name, process in self.processes.items()}
        for number, pid in enumerate(sorted(children_of(found["gunicorn"])), 1):
            found[f"gunicorn, worker {number}"] = pid
        return found


def held_by(pid: int) -> Held:
    """Return what a process holds. Raises FileNotFoundError if it is gone."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text("ascii")
    private = sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Private_"))
    return Held(private, len(os.listdir(f"/proc/{pid}/fd")))


def children_of(pid: int) -> list[int]:
    """Return the processes that a process has started."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()]


@contextmanager
def serving(cluster: Cluster, folder: Path, pause: float) -> Iterator[Stack]:
    """Run the site on a cluster. pause: seconds between two edits."""
    environment = {
        **MALLOC,
        "DJANGO_SETTINGS_MODULE": f"{__package__}.settings",
        "SOAK_PORTS": ",".join(str(server.port) for server in cluster.servers),
        "TEST_DATABASE_URL": f"sqlite:{folder}/soak.sqlite3",
    }
    operator = ("-m", f"{__package__}.operator", str(pause))
    subprocess.run((sys.executable, *operator, "make"), env=os.environ | environment_of(**environment), check=True)
    ports = free_port(), free_port()
    gunicorn = f"--bind {HOST}:{ports[0]} --workers 2 --threads 8 --keep-alive 75 --no-control-socket"
    uvicorn = f"--host {HOST} --port {ports[1]} --log-level error --timeout-keep-alive 75"
    commands = {
        "gunicorn": ("-m", "gunicorn", "tests.system.wsgi", *gunicorn.split()),
        "uvicorn": ("-m", "uvicorn", "tests.system.asgi:application", *uvicorn.split()),
        "operator": operator,
    }
    with ExitStack() as stack:
        processes = {}
        for name, command in commands.items():
            (folder / name).mkdir()
            processes[name] = stack.enter_context(running(folder / name, *command, **environment))
        yield Stack(ports, processes)
