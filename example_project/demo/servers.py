"""Starts the processes of the demo, none of which can outlive it, and stops them all."""

from __future__ import annotations

import contextlib
import http.client
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit
from uuid import uuid4

from ..middleware import PROCESS_HEADER
from ..redis_server import HOST, WatchedProcess, free_port, redis_url

WORKERS: Final = 4
START_SECONDS: Final = 30.0
#: Seconds between two collections of usage by the demo's beat; a real site collects each minute.
COLLECT_SECONDS: Final = 5

PROJECT: Final = Path(__file__).resolve().parents[2]


class DemoError(Exception):
    """A process did not start or did not answer; the text has the reason and the end of the output."""


class Site:
    """The running example.

    folder: its database and logs. redis: the URL of its Redis. namespace: the prefix of its keys there.
    workers: the web server's process ids, once it runs.
    """

    def __init__(self, folder: Path, redis: str) -> None:
        self.folder = folder
        self.redis = redis
        self.namespace = f"demo-{uuid4().hex[:8]}"
        self.port = free_port()
        self.workers: list[int] = []
        self.keep_folder = False
        self._processes: list[tuple[str, WatchedProcess]] = []
        # Children inherit these. The namespace separates runs on the same Redis.
        os.environ |= {
            "DJANGO_SETTINGS_MODULE": "example_project.settings",
            "REDIS_URL": redis,
            "EXAMPLE_STATE_DIR": str(folder),
            "EXAMPLE_NAMESPACE": self.namespace,
            "EXAMPLE_COLLECT_SECONDS": str(COLLECT_SECONDS),
            "EXAMPLE_DEBUG": "",
            "PYTHONPATH": os.pathsep.join(filter(None, [str(PROJECT), os.environ.get("PYTHONPATH")])),
            "PYTHONUNBUFFERED": "1",
        }

    @property
    def url(self) -> str:
        """The address of the web server."""
        return f"http://{HOST}:{self.port}"

    def variables(self) -> list[str]:
        """Return the environment variables to write before a command for this site; no URL with a password."""
        names = ["EXAMPLE_STATE_DIR", "EXAMPLE_NAMESPACE"]
        if not urlsplit(self.redis).password:  # whoever set REDIS_URL has it in the environment
            names.insert(0, "REDIS_URL")
        return [f"{name}={shlex.quote(os.environ[name])}" for name in names]

    def manage(self, *arguments: str) -> str:
        """Run a management command and return what it printed."""
        command = [sys.executable, str(PROJECT / "manage.py"), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        (self.folder / f"{arguments[0]}.log").write_text(done.stdout + done.stderr)
        if done.returncode:
            raise DemoError(f"manage.py {shlex.join(arguments)} failed:\n{done.stderr[-2000:]}")
        return done.stdout.strip()

    def start(self, name: str, *command: str) -> None:
        """Start `python -m COMMAND`; its output goes to `output.log` in a folder of that name."""
        folder = self.folder / name
        folder.mkdir()
        self._processes.append((name, WatchedProcess([sys.executable, "-m", *command], folder)))

    def start_web(self) -> None:
        """Start gunicorn, and return once all of its workers have answered."""
        # No worker takes more than its share of the connections, whichever is the first to accept them.
        options = f"--bind {HOST}:{self.port} --workers {WORKERS} --threads 4 --worker-connections 14 --keep-alive 75"
        self.start("gunicorn", "gunicorn", "example_project.wsgi", "--no-control-socket", *options.split())
        seen: set[int] = set()
        deadline = time.monotonic() + START_SECONDS
        while len(seen) < WORKERS:
            if time.monotonic() > deadline:
                raise DemoError(f"gunicorn did not answer with {WORKERS} workers in {START_SECONDS:.0f} s.")
            self.check_running()
            process = self._ask_index()
            seen |= {process} if process else set()
            if not process:
                time.sleep(0.1)
        self.workers = sorted(seen)

    def start_celery(self) -> None:
        """Start a worker with beat."""
        celery = ("celery", "--app", "example_project.celery", "--quiet")
        quiet = ("--without-gossip", "--without-mingle", "--loglevel", "INFO")
        self.start("celery-worker", *celery, "worker", "--pool", "solo", *quiet)
        schedule = str(self.folder / "beat-schedule")
        self.start("celery-beat", *celery, "beat", "--schedule", schedule, "--pidfile", "", "--loglevel", "INFO")

    def check_running(self) -> None:
        """Raise DemoError if one of the processes has ended."""
        for name, process in self._processes:
            if not process.running:
                raise DemoError(f"{name} has ended by itself:\n{process.output}")

    def stop(self) -> None:
        """End all processes at the same time, because each may take a while."""
        stopping = [threading.Thread(target=process.stop) for _, process in self._processes]
        self._processes.clear()
        for thread in stopping:
            thread.start()
        for thread in stopping:
            thread.join()

    def _ask_index(self) -> int | None:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=5)
        try:
            connection.request("GET", "/", headers={"Connection": "close"})
            response = connection.getresponse()
            response.read()
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()
        if response.status != 200:
            raise DemoError(f"The index page answers {response.status}.")
        return int(response.headers.get(PROCESS_HEADER, 0)) or None


@contextlib.contextmanager
def running_site() -> Iterator[Site]:
    """A site with its own folder and Redis. However the block ends, all processes are ended.

    The folder with the database and the logs is removed, unless `site.keep_folder` is set or an Exception is raised.
    """
    folder = Path(tempfile.mkdtemp(prefix="ratelimiter-demo-"))
    site = None
    try:
        with redis_url() as redis:
            site = Site(folder, redis)
            try:
                yield site
            except Exception as error:
                site.keep_folder = True
                error.add_note(f"Database and logs are kept in {folder}")
                raise
            finally:
                site.stop()
    finally:
        if site is None or not site.keep_folder:
            shutil.rmtree(folder, ignore_errors=True)
