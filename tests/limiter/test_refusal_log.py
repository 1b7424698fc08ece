"""The log records of refusals are what `Logger.warning` would make of them."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator
from threading import Thread

import pytest

from django_ratelimiter.limiter.refusal_log import MESSAGE, RefusalLog

EXTRA = {"rule": "login", "tier": None, "partition": "abc", "version": 7}
#: Where it was logged, when, and which it is: these differ.
OTHERS = {"pathname", "filename", "module", "lineno", "funcName", "created", "msecs", "relativeCreated"}


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def kept() -> Kept:
    return Kept()


@pytest.fixture
def logger(kept: Kept) -> Iterator[logging.Logger]:
    logger = logging.getLogger("tests.refusal_log")
    logger.propagate = False
    logger.addHandler(kept)
    yield logger
    logger.removeHandler(kept)


def write_both(logger: logging.Logger, log: RefusalLog) -> None:
    logger.warning(MESSAGE, "login", "", extra=EXTRA)
    log.write("login", EXTRA)


def parts(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in vars(record).items() if name not in OTHERS}


def assert_alike(kept: Kept) -> None:
    usual, ours = kept.records
    assert parts(ours) == parts(usual)
    assert set(vars(ours)) == set(vars(usual))
    assert ours.getMessage() == usual.getMessage() == "A request was rejected by login."
    assert 0 <= ours.created - usual.created < 5
    assert ours.relativeCreated - usual.relativeCreated == pytest.approx((ours.created - usual.created) * 1_000, abs=2)
    assert ours.msecs == pytest.approx(ours.created % 1 * 1_000, abs=1)
    assert ours.filename == "refusal_log.py"


def test_a_record_is_what_the_logger_would_make(logger: logging.Logger, kept: Kept) -> None:
    log = RefusalLog(logger)
    write_both(logger, log)
    assert_alike(kept)


def test_in_another_thread(logger: logging.Logger, kept: Kept) -> None:
    log = RefusalLog(logger)
    log.write("login", EXTRA)
    kept.records.clear()
    thread = Thread(target=write_both, args=(logger, log), name="a worker")
    thread.start()
    thread.join()
    assert_alike(kept)
    assert kept.records[1].threadName == "a worker"


def test_in_a_task(logger: logging.Logger, kept: Kept) -> None:
    log = RefusalLog(logger)

    async def work() -> None:
        write_both(logger, log)

    async def main() -> None:
        await asyncio.create_task(work(), name="a task")

    asyncio.run(main())
    assert_alike(kept)


def test_in_a_child_process(logger: logging.Logger, kept: Kept) -> None:
    log = RefusalLog(logger)
    log.write("login", EXTRA)
    child = os.fork()
    if not child:
        log.write("login", EXTRA)
        os._exit(kept.records[-1].process != os.getpid())
    assert os.waitpid(child, 0)[1] == 0


def test_levels_may_be_renamed_later(logger: logging.Logger, kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    log = RefusalLog(logger)
    monkeypatch.setattr("django_ratelimiter.limiter.refusal_log.KEPT_SECONDS", 0.0)
    logging.addLevelName(logging.WARNING, "warn")
    try:
        log.write("login", EXTRA)
    finally:
        logging.addLevelName(logging.WARNING, "WARNING")
    assert kept.records[0].levelname == "warn"


def test_a_factory_of_the_projects_makes_them(logger: logging.Logger, kept: Kept) -> None:
    class Own(logging.LogRecord):
        pass

    log, usual = RefusalLog(logger), logging.getLogRecordFactory()
    logging.setLogRecordFactory(Own)
    try:
        log.write("login", EXTRA, " Why?")
    finally:
        logging.setLogRecordFactory(usual)
    assert type(kept.records[0]) is Own
    assert kept.records[0].getMessage() == "A request was rejected by login. Why?"


def test_filters_of_the_logger_are_asked(logger: logging.Logger, kept: Kept) -> None:
    log = RefusalLog(logger)

    def refuse(_record: logging.LogRecord) -> bool:
        return False

    logger.addFilter(refuse)
    log.write("login", EXTRA)
    logger.removeFilter(refuse)
    assert not kept.records
