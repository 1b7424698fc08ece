"""Output into a pipe whose reader has gone, as `| head` has after ten lines."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

#: What shells say of a program that ends by the signal of a broken pipe: 128 + SIGPIPE.
EXIT_CODE: Final = 141


@contextmanager
def quiet_pipes(*outputs: Any) -> Iterator[None]:
    """End the command with EXIT_CODE, and without a traceback, once nobody reads what it writes to these."""
    try:
        yield
        for output in outputs:
            output.flush()
    except BrokenPipeError:
        for stream in (sys.stdout, sys.stderr):
            _forget_what_is_unwritten(stream)
        raise SystemExit(EXIT_CODE) from None


def _forget_what_is_unwritten(stream: Any) -> None:
    """Let the interpreter's last flush find somebody who reads: else it complains when it ends."""
    try:
        stream.flush()
    except BrokenPipeError:
        with suppress(OSError, ValueError):  # a stream of a test's, or one that is closed
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
