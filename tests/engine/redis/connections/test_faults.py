"""Errors whose code redis-py has taken off their text, as it does before 7.2, mean the same."""

from __future__ import annotations

import pytest
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    MasterDownError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
)

from django_ratelimiter.engine.redis.connections.faults import is_outage, sentence_of

IN_A_SCRIPT = "script: 0f9a, on @user_script:1."


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (AuthenticationError("Authentication required."), "another password"),
        (BusyLoadingError("Redis is loading the dataset in memory"), "loading its data"),
        (NoPermissionError("No permissions to access a key"), "may not run a command"),
        (OutOfMemoryError(f"command not allowed when used memory > 'maxmemory'. {IN_A_SCRIPT}"), "memory is full"),
        (ReadOnlyError(f"You can't write against a read only replica. {IN_A_SCRIPT}"), "read-only replica"),
    ],
)
def test_the_class_says_what_the_code_has_said(error: RedisError, says: str) -> None:
    assert is_outage(error)
    assert says in str(sentence_of(error))


def test_a_master_that_is_away_is_an_outage_and_a_missing_script_is_none() -> None:
    assert is_outage(MasterDownError(f"Link with MASTER is down. {IN_A_SCRIPT}"))
    missing = NoScriptError("No matching script. Please use EVAL.")
    assert not is_outage(missing)
    assert "does not keep scripts" in str(sentence_of(missing))
