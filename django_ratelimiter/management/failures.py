"""What subcommands do if something fails: they wait for a connection to Redis, and end with one text."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError
from django.db import DatabaseError
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ..conf import without_secrets
from ..exceptions import EngineUnavailable, WrongRedis, told_safely
from ..forecast.logs.formats import WrongFormat
from ..inspection.caller import UnknownCaller
from ..inspection.question import QuestionError
from ..rules.files.reading import LibraryMissing
from ..rules.files.rows import WrongFile
from ..rules.stored.history.rows import NotApplied
from .output import of_file
from .traffic import WrongOption

T = TypeVar("T")

#: Maximum seconds to wait, and seconds between two attempts.
WAIT_SECONDS: Final = 2.0
PAUSE_SECONDS: Final = 0.05

#: Errors whose text says what is wrong.
_IN_WORDS: Final = (NotApplied, UnknownCaller, WrongFormat, WrongOption, WrongRedis, LibraryMissing)

_clock, _sleep = time.monotonic, time.sleep


def once_connected(ask: Callable[[], T], is_answered: Callable[[T], bool]) -> T:
    """Return the result of `ask`, which is called again for a while if Redis has not answered.

    The first call starts a connection, and gives up after DEADLINE_MS. is_answered: whether Redis has answered. What
    `ask` raises after that while is raised: EngineUnavailable.
    """
    until = _clock() + WAIT_SECONDS
    while True:
        try:
            if is_answered(found := ask()) or _clock() >= until:
                return found
        except EngineUnavailable:
            if _clock() >= until:
                raise
        _sleep(PAUSE_SECONDS)


@contextmanager
def in_words(subcommand: str) -> Iterator[None]:
    """Raise CommandError instead of an error that the subcommand does not explain itself."""
    try:
        yield
    except ImproperlyConfigured as error:
        raise CommandError(without_secrets(told_safely(error))) from error
    except DatabaseError as error:
        raise CommandError(_("The database cannot be reached now: %s") % error) from error
    except EngineUnavailable as error:
        raise CommandError(_("Redis cannot be reached now: %s") % error) from error
    except QuestionError as error:
        raise CommandError(f"{error.field}: {error}") from error
    except WrongFile as error:
        count = len(error.faults)
        text = ngettext("%d fault:", "%d faults:", count)
        if subcommand == "apply":  # the others never change anything
            text = ngettext("%d fault; nothing was changed:", "%d faults; nothing was changed:", count)
        raise CommandError(f"{text % count}\n{error}") from error  # each error on its own line, for programs
    except OSError as error:
        raise CommandError(of_file(error)) from error
    except _IN_WORDS as error:
        raise CommandError(str(error)) from error
