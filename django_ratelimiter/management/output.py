"""Outputs of subcommands: files, pipes whose reader has ended, and terminals that a text cannot control."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TextIO

from django.core.management.base import CommandError, OutputWrapper
from django.utils.translation import gettext as _

from ..values.terminal import on_terminal

#: The exit code in shells of a program that SIGPIPE has ended: 128 + SIGPIPE.
EXIT_CODE: Final = 141


def write_file(name: str, text: str, *, is_new: bool = False) -> None:
    """Write a text into a file. Raises CommandError if it cannot be written. is_new: or if the file exists."""
    if is_new and os.path.lexists(name) and not _is_device(name):
        raise CommandError(_("%s exists already. Choose another name, or delete it first.") % name)
    with whole_file(name) as file:
        file.write(text)


@contextmanager
def whole_file(name: str) -> Iterator[TextIO]:
    """Open a file for writing. Its content only changes at the end of the block, and not if the block fails.

    Raises CommandError if it cannot be written. Devices are written directly.
    """
    require_writable(name)  # replacing must not circumvent a missing permission to write
    target = Path(os.path.realpath(name))  # a link stays a link
    beside = None if _is_device(name) else target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with (beside or Path(name)).open("w", encoding="utf-8", newline="") as file:
            yield file
        if beside is not None:
            if target.exists():
                shutil.copymode(target, beside)
            beside.replace(target)
    except OSError as error:
        raise CommandError(of_file(error)) from error
    finally:
        if beside is not None:
            with suppress(OSError):
                beside.unlink()


def require_writable(name: str) -> None:
    """Raise CommandError if a file of this name cannot be written. Changes nothing."""
    target = Path(os.path.realpath(name))
    try:
        if _is_device(name):
            return
        if target.exists():
            target.open("ab").close()
        else:
            target.open("xb").close()
            target.unlink()
    except OSError as error:
        raise CommandError(of_file(error)) from error


def _is_device(name: str) -> bool:
    """Return whether it is neither file nor folder, such as a pipe, or /dev/stdout, wherever that leads."""
    path = Path(name)
    return path.exists() and (name.startswith("/dev/") or not (path.is_file() or path.is_dir()))


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


class Terminal(OutputWrapper):
    """An output of a command on which only line breaks act. Styles are passed as `style_func`, not within a text."""

    def __init__(self, output: Any) -> None:
        super().__init__(output)
        self._output = output

    def write(self, msg: str = "", style_func: Any = None, ending: str | None = None) -> None:  # type: ignore[override]
        self._output.write(on_terminal(msg.split("\n")), style_func, ending)


def of_file(error: OSError) -> str:
    """Return an error as text, without its number."""
    return f"{error.filename}: {error.strerror}." if error.filename and error.strerror else str(error)
