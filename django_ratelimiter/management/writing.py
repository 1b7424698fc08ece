"""Files that subcommands write."""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Final

from django.core.management.base import CommandError

#: What a folder answers that lets no file be replaced, such as one into which the file alone is mounted.
CANNOT_REPLACE: Final = {errno.EACCES, errno.EBUSY, errno.EPERM, errno.EROFS}


def write_file(name: str, text: str, *, is_new: bool = False) -> None:
    """Write a text into a file. Raises CommandError if it cannot be written. is_new: or if there is such a file.

    If the process is killed meanwhile, the file holds the old text or the new one, unless its folder lets no file be
    replaced.
    """
    require_writable(name)  # what may not be written is not replaced either
    try:
        if is_new and os.path.lexists(name) and not _is_device(name):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
        if _is_device(name):
            Path(name).write_text(text, "utf-8", newline="")
        else:
            _replace(Path(os.path.realpath(name)), text)  # a link stays a link
    except OSError as error:
        raise CommandError(str(error)) from error


def require_writable(name: str) -> None:
    """Raise CommandError if a file of this name cannot be written. Leaves everything as it is."""
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
        raise CommandError(str(error)) from error


def _is_device(name: str) -> bool:
    """Whether it is no file and no folder, such as a pipe, or /dev/stdout, wherever that leads."""
    path = Path(name)
    return path.exists() and (name.startswith("/dev/") or not (path.is_file() or path.is_dir()))


def _replace(target: Path, text: str) -> None:
    """Write beside the target first, and put that in its place."""
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        beside.write_text(text, "utf-8", newline="")
        if target.exists():
            shutil.copymode(target, beside)
        beside.replace(target)
    except OSError as error:
        if error.errno not in CANNOT_REPLACE:
            raise
        target.write_text(text, "utf-8", newline="")
    finally:
        with suppress(OSError):
            beside.unlink()
