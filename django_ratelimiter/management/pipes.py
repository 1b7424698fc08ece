"""Output into a pipe whose reader has ended, as with `| head`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

#: The exit code in shells of a program that SIGPIPE has ended: 128 + SIGPIPE.
EXIT_CODE: Final = 141


@contextmanager
def quiet_pipes(*outputs: Any) -> Iterator[None]:
    """End the command with EXIT_CODE, and without a traceback, if nothing reads these outputs any more."""
    try:
        yield
        for output in outputs:
            output.flush()
    except BrokenPipeError:
        for stream in (sys.stdout, sys.stderr):
            _forget_what_is_unwritten(stream)
        raise SystemExit(EXIT_CODE) from None


def _forget_what_is_unwritten(stream: Any) -> None:
    """Redirect the stream to /dev/null: else the interpreter's last flush would report an error."""
    try:
        stream.flush()
    except BrokenPipeError:
        with suppress(OSError, ValueError):  # a test's own stream, or a closed one
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
