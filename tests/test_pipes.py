"""Commands whose output nobody reads to its end, as with `| head`."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest
from django.core.management import call_command

PROGRAM = """
import sys
from django_ratelimiter.management.output import quiet_pipes
with quiet_pipes(sys.stdout):
    for _ in range({lines}):
        print("x" * 100)
"""


@pytest.mark.parametrize("lines", [1, 10_000])
def test_a_process_ends_quietly_and_says_by_its_exit_code_why(lines: int) -> None:
    """Also if all of it fits into the buffer, which is written at the end."""
    read, write = os.pipe()
    os.close(read)
    try:
        ended = subprocess.run(
            [sys.executable, "-c", PROGRAM.format(lines=lines)], stdout=write, stderr=subprocess.PIPE, check=False
        )
    finally:
        os.close(write)
    assert (ended.returncode, ended.stderr) == (141, b"")


class Unread(io.StringIO):
    """A pipe without a reader."""

    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")


@pytest.mark.django_db
@pytest.mark.parametrize("line", ["explain GET /x/", "caller --ip 192.0.2.7", "watch", "collect", "export", "on"])
def test_each_subcommand_does(line: str) -> None:
    with pytest.raises(SystemExit) as ended:
        call_command("ratelimit", *line.split(), stdout=Unread())
    assert ended.value.code == 141
