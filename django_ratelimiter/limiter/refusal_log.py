"""The log record of a rejection: the same as from `Logger.warning`, but much faster.

`Logger.warning` would take half the time of a rejection, and a flood causes many. It searches for the line that
logs, which is always ours, and splits its path. Here the common parts of all records are made once a second.
"""

from __future__ import annotations

import logging
from asyncio import _get_running_loop, current_task
from collections.abc import Mapping
from os import getpid
from threading import current_thread, get_ident
from time import time
from typing import Any, Final

MESSAGE: Final = "A request was rejected by %s.%s"

#: Seconds for which the common parts are cached: levels and processes may be renamed.
KEPT_SECONDS: Final = 1.0

_new = object.__new__


class RefusalLog:
    """Logs rejections as warnings. logger: its filters and handlers get the records.

    If a project has its own factory or class of records, these are used.
    """

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._common = self._make({})

    def write(self, names: str, extra: Mapping[str, Any], why: str = "") -> None:
        """Log a rejection. names: of the rules that reject. extra: attributes of the record, each time the same ones.

        why: one more sentence.
        """
        logger = self._logger
        if logging.getLogRecordFactory() is not logging.LogRecord or type(logger) is not logging.Logger:
            logger.warning(MESSAGE, names, why, extra=extra)
            return
        now = time()
        made_at, pid, in_tasks, parts = self._common
        passed = now - made_at
        if not 0.0 <= passed < KEPT_SECONDS or pid != getpid():
            made_at, _, in_tasks, parts = self._common = self._make(extra)
            passed = max(now - made_at, 0.0)
            now = made_at + passed
        record = _new(logging.LogRecord)
        record.__dict__ = attributes = {
            **parts,
            **extra,
            "args": (names, why),
            "created": now,
            "msecs": int(now % 1.0 * 1_000) + 0.0,
            "relativeCreated": parts["relativeCreated"] + passed * 1_000,
        }
        if parts["thread"] is not None:
            attributes["thread"], attributes["threadName"] = get_ident(), current_thread().name
        if in_tasks:
            task = None if _get_running_loop() is None else current_task()
            attributes["taskName"] = None if task is None else task.get_name()
        logger.handle(record)

    def _make(self, extra: Mapping[str, Any]) -> tuple[float, int | None, bool, dict[str, Any]]:
        """Return the common parts of all records, and when they were made: time, process, whether to name the task.

        They include `extra`, because a dict that already has its keys need not grow.
        """
        logger = self._logger
        record = logger.makeRecord(logger.name, logging.WARNING, __file__, 0, MESSAGE, (), None, "write")
        return record.created, record.process, hasattr(record, "taskName"), {**record.__dict__, **extra}
