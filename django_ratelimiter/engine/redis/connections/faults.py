"""The meaning of an error from a server: whether it affects one call or every call, and its text for people."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from redis.asyncio.sentinel import MasterNotFoundError as AsyncMasterNotFoundError
from redis.exceptions import (
    AskError,
    BusyLoadingError,
    ClusterCrossSlotError,
    ClusterDownError,
    InvalidResponse,
    MasterDownError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.sentinel import MasterNotFoundError

from ....exceptions import EngineUnavailable
from ...base import WrongServer

#: Exceptions of reading a reply that do not come from the script.
NOT_A_REPLY: Final = (LookupError, TypeError, ValueError)

#: Error codes for which redis-py has a class. Before 7.2 it removes them from the text and does not store them.
_CODES: Final[Mapping[type[Exception], str]] = {
    BusyLoadingError: "LOADING",
    ClusterDownError: "CLUSTERDOWN",
    MasterDownError: "MASTERDOWN",
    NoPermissionError: "NOPERM",
    NoScriptError: "NOSCRIPT",
    OutOfMemoryError: "OOM",
    ReadOnlyError: "READONLY",
}

#: Errors about the server itself, also from a command in a script; servers before 7.0 put them into the script's text.
_OF_THE_SERVER: Final = re.compile(
    r"(?:^|[ -])(?:READONLY|OOM|MISCONF|NOREPLICAS|NOPERM|NOAUTH|LOADING|MASTERDOWN|CLUSTERDOWN|BUSY|DENIED)\b"
    r"|can't run this command|has no permissions"
)
#: Lua names the script if it, or one of its commands, has failed.
_IN_A_SCRIPT: Final = re.compile(r"user_script|Error running script|^WRONGTYPE")

#: The meaning of an error's code or text, as a sentence.
_SENTENCES: Final = (
    (
        r"^NOAUTH|unauthenticated|^Authentication required|without any password|no password is set",
        "The server requires another password.",
    ),
    (r"^WRONGPASS|invalid username-password|invalid password", "The server rejects the user name or the password."),
    (
        r"NOPERM|can't run this command|no permissions",
        "The user may not run a command, or not on our keys. "
        "docs/howto/bigger-sites.md lists the permissions it needs.",
    ),
    (r"DENIED|protected mode", "The server is in protected mode, and accepts nobody from another machine."),
    (r"max number of clients", "The server has reached its maxclients."),
    (r"LOADING", "The server is loading its data."),
    (r"READONLY", "The server is a read-only replica."),
    (r"OOM|used memory > 'maxmemory'", "The server's memory is full (maxmemory), so it accepts no writes."),
    (r"MISCONF", "The server accepts no writes, because it could not save its data."),
    (r"NOREPLICAS", "The server accepts no writes, because it has too few replicas."),
    (r"BUSY ", "The server is busy with a script."),
    (r"NOSCRIPT", "The server does not keep scripts: ours was loaded just before."),
    (r"unknown command.*(EVALSHA|SCRIPT)", "The server runs no Lua scripts."),
    (r"unknown command.*HELLO", "The server is too old for HELLO. Set `protocol: 2`, as by ?protocol=2 in LOCATION."),
    (r"not allowed from script", "The server does not allow TIME in scripts. Set RATELIMITER['CLOCK'] = \"client\"."),
    (r"undeclared|not declared", "The server rejects a key of the script, although all keys are declared."),
    (r"nonexistent global|attempt to (call|index)", "The server's Lua lacks a function that the script needs."),
    (r"unknown command|not allowed|not supported", "The server does not run a command that the script needs."),
    (r"WRONGTYPE", "Another program writes to our keys. Set RATELIMITER['NAMESPACE'] to a name that nobody else uses."),
    (r"Protocol error, got", "The program at this address is not a Redis server."),
)

#: Maximum number of characters of an error's own text.
_MAX_LENGTH: Final = 200
#: redis-py includes the `repr` of its clients, several hundred characters for each Sentinel.
_SENTINEL: Final = re.compile(r"\bhost=([^,]+),port=(\d+).*?> - (.*?)(?=, <redis|$)", re.DOTALL)


class PoolTimeout(RedisTimeoutError):
    """No connection in time, which does not count as a failure of the server.

    It has just answered other calls, or a call that waited for the same connection counts.
    """


def is_outage(error: Exception) -> bool:
    """Return whether other calls would fail as well; False if the server rejected only this call."""
    if not isinstance(error, ResponseError):
        return True
    if isinstance(error, ClusterCrossSlotError | NoScriptError) or is_elsewhere(error):
        return False  # its keys are in several slots or elsewhere, or the script must be loaded
    text = _text(error)
    return _OF_THE_SERVER.search(text) is not None or _IN_A_SCRIPT.search(text) is None


def may_have_been_run(error: Exception) -> bool:
    """Return whether a server may have run a failed call: it was sent, and not rejected."""
    cause = error.__cause__
    is_known = cause is None or isinstance(cause, ResponseError) or "refused" in str(cause)
    return isinstance(error, EngineUnavailable) and not is_known


def is_elsewhere(error: object) -> bool:
    """Return whether this node of a cluster does not serve the keys of this call: another node does, or none."""
    if isinstance(error, ClusterDownError):
        return "not served" in str(error)
    return isinstance(error, AskError | TryAgainError)


def is_refused(error: Exception) -> bool:
    """Return whether the server rejects or does not support this one command, and is otherwise usable."""
    return isinstance(error, NoPermissionError) or (isinstance(error, ResponseError) and "unknown" in str(error))


def is_fault(error: EngineUnavailable) -> bool:
    """Return whether the server answered, but does not run the scripts as Redis does; else it is out of reach."""
    cause = error.__cause__
    if isinstance(error, WrongServer) or isinstance(cause, NOT_A_REPLY):
        return True
    return isinstance(cause, ResponseError) and (is_refused(cause) or _OF_THE_SERVER.search(_text(cause)) is None)


def raise_if_broken(reply: object, kind: type = list) -> None:
    """Raise if the connection cannot be used any more: after an outage, or a reply of another type.

    Also if the script is missing, because it was loaded before. Errors of a single command do not raise.
    """
    if isinstance(reply, Exception):
        if is_outage(reply) or isinstance(reply, NoScriptError):
            raise reply
    elif type(reply) is not kind:
        raise InvalidResponse(f"A reply that no Redis sends: {reply!r:.100}")


def sentence_of(error: Exception) -> str | None:
    """Return the meaning of an error as a sentence; `None` if it is not known here."""
    text = _text(error)
    return next((sentence for pattern, sentence in _SENTENCES if re.search(pattern, text)), None)


def explain(error: Any) -> str:
    """Return an error's text for a log line: first the meaning as a sentence, then the original text."""
    if isinstance(error, MasterNotFoundError | AsyncMasterNotFoundError):
        return _of_sentinels(str(error))
    sentence = sentence_of(error)
    text = str(error)
    text = text if len(text) <= _MAX_LENGTH else f"{text[:_MAX_LENGTH]}…"
    return text if sentence is None or sentence in text else f"{sentence} ({text})"


def connection_error(error: Exception) -> RedisConnectionError:
    """Return the exception of a call that got no connection, for this reason."""
    named = RedisConnectionError(explain(error))
    named.__cause__ = error
    return named


def _of_sentinels(text: str) -> str:
    """Return which Sentinels were asked for a master, and why each could not name one."""
    head, _, rest = text.partition(" : ")
    found = _SENTINEL.findall(rest)
    asked = [f"Sentinel {host}:{port}: {why.partition('(')[0][:_MAX_LENGTH]}" for host, port, why in found]
    return f"{head}. {'; '.join(asked)}" if asked else head[:_MAX_LENGTH]


def _text(error: Exception) -> str:
    """Return an error as the server has sent it: redis-py removes the codes that it knows."""
    code = getattr(error, "status_code", None) or _CODES.get(type(error))
    return f"{code} {error}" if code and not str(error).startswith(code) else str(error)


class HandshakeErrors:
    """The last error that a server sent during redis-py's handshake, which ignores some errors."""

    def __init__(self, redis_connection: Any) -> None:
        self.error: Exception | None = None
        self._parser, self._parse = redis_connection._parser, redis_connection._parser.parse_error
        redis_connection._parser.parse_error = self._record

    def _record(self, text: str) -> Exception:
        error: Exception = self._parse(text)
        if not is_refused(error):
            self.error = error
        return error

    def stop(self) -> Exception | None:
        """Stop recording. Return the server's error if it explains what is wrong."""
        del self._parser.parse_error
        return self.error if self.error is not None and sentence_of(self.error) else None
