"""What an error from a server means: for this one call, or for every call; and in plain words."""

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
from redis.sentinel import MasterNotFoundError

from ....exceptions import EngineUnavailable
from ...base import WrongServer

#: What reading a reply raises that is none of the script's.
NOT_A_REPLY: Final = (LookupError, TypeError, ValueError)

#: Another node has the keys of this call, or is about to.
_MOVES: Final = (AskError, TryAgainError)

#: A server says so of one call: its keys lie in several slots, or the script is to be loaded.
_OF_ONE_CALL: Final = (ClusterCrossSlotError, NoScriptError)

#: The codes of errors that redis-py has a class for. Before 7.2 it takes them off the text, and keeps them nowhere.
_CODES: Final[Mapping[type[Exception], str]] = {
    BusyLoadingError: "LOADING",
    ClusterDownError: "CLUSTERDOWN",
    MasterDownError: "MASTERDOWN",
    NoPermissionError: "NOPERM",
    NoScriptError: "NOSCRIPT",
    OutOfMemoryError: "OOM",
    ReadOnlyError: "READONLY",
}

#: What a server says of itself, also where a command of a script has met it; servers before 7.0 put it in their text.
_OF_THE_SERVER: Final = re.compile(
    r"(?:^|[ -])(?:READONLY|OOM|MISCONF|NOREPLICAS|NOPERM|NOAUTH|LOADING|MASTERDOWN|CLUSTERDOWN|BUSY|DENIED)\b"
    r"|can't run this command|has no permissions"
)
#: Lua names the script where it, or a command of it, has failed.
_IN_A_SCRIPT: Final = re.compile(r"user_script|Error running script|^WRONGTYPE")

#: What an error's code and text say, in a sentence.
_SENTENCES: Final = (
    (
        r"^NOAUTH|unauthenticated|^Authentication required|without any password|no password is set",
        "The server requires another password.",
    ),
    (r"^WRONGPASS|invalid username-password|invalid password", "The server rejects the user name or the password."),
    (
        r"NOPERM|can't run this command|no permissions",
        "The user may not run a command, or not on our keys. docs/howto/cluster.md lists the permissions it needs.",
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
    (r"not allowed from script", "The server does not allow TIME in scripts. Set RATELIMITER['CLOCK'] = \"client\"."),
    (r"undeclared|not declared", "The server rejects a key of the script, although all keys are declared."),
    (r"nonexistent global|attempt to (call|index)", "The server's Lua lacks a function that the script needs."),
    (r"unknown command|not allowed|not supported", "The server does not run a command that the script needs."),
    (r"WRONGTYPE", "Another program writes to our keys. Set RATELIMITER['NAMESPACE'] to a name that nobody else uses."),
    (r"Protocol error, got", "The program at this address is not a Redis server."),
)
_KNOWN: Final = tuple((re.compile(pattern), sentence) for pattern, sentence in _SENTENCES)

#: Characters of an error's own text that are worth reading.
_MAX_LENGTH: Final = 200
#: redis-py puts its clients' `repr` in the text, several hundred characters for each Sentinel.
_SENTINEL: Final = re.compile(r"\bhost=([^,]+),port=(\d+).*?> - (.*?)(?=, <redis|$)", re.DOTALL)


def is_outage(error: Exception) -> bool:
    """Whether other calls would fail as well: not where the server has refused this one for what it holds."""
    if not isinstance(error, ResponseError):
        return True
    if isinstance(error, _OF_ONE_CALL) or is_elsewhere(error):
        return False
    text = _text(error)
    return _OF_THE_SERVER.search(text) is not None or _IN_A_SCRIPT.search(text) is None


def is_elsewhere(error: object) -> bool:
    """Whether this node of a cluster does not serve the keys of this call: another one does, or nobody."""
    return isinstance(error, _MOVES) or (isinstance(error, ClusterDownError) and "not served" in str(error))


def is_refused(error: Exception) -> bool:
    """Whether the server refuses, or does not know, this one command, and may well be of use without it."""
    return isinstance(error, NoPermissionError) or (isinstance(error, ResponseError) and "unknown" in str(error))


def is_fault(error: EngineUnavailable) -> bool:
    """Whether the server answered, and does not run the scripts as Redis does; else it is out of reach."""
    cause = error.__cause__
    if isinstance(error, WrongServer) or isinstance(cause, NOT_A_REPLY):
        return True
    return isinstance(cause, ResponseError) and (is_refused(cause) or _OF_THE_SERVER.search(_text(cause)) is None)


def raise_if_broken(reply: object, kind: type = list) -> None:
    """Raise what leaves a connection useless: an outage, or a reply of another kind than the call has.

    A script that is missing is one: it was loaded before. Errors that refuse this one command do no harm.
    """
    if isinstance(reply, Exception):
        if is_outage(reply) or isinstance(reply, NoScriptError):
            raise reply
    elif type(reply) is not kind:
        raise InvalidResponse(f"A reply that no Redis sends: {reply!r:.100}")


def sentence_of(error: Exception) -> str | None:
    """What an error says, in a sentence; `None` if it is none that is known here."""
    text = _text(error)
    return next((sentence for pattern, sentence in _KNOWN if pattern.search(text)), None)


def explain(error: Any) -> str:
    """An error's text for a log line: what is wrong in a sentence, then what the server or the client has said."""
    if isinstance(error, MasterNotFoundError | AsyncMasterNotFoundError):
        return _of_sentinels(str(error))
    sentence = sentence_of(error)
    text = str(error)
    text = text if len(text) <= _MAX_LENGTH else f"{text[:_MAX_LENGTH]}…"
    return text if sentence is None or sentence in text else f"{sentence} ({text})"


def connection_error(error: Exception) -> RedisConnectionError:
    """What a call raises for which there was no connection to be had, for this reason."""
    named = RedisConnectionError(explain(error))
    named.__cause__ = error
    return named


def _of_sentinels(text: str) -> str:
    """Which Sentinels were asked for a master, and why each could not tell."""
    head, _, rest = text.partition(" : ")
    found = _SENTINEL.findall(rest)
    asked = [f"Sentinel {host}:{port}: {why.partition('(')[0][:_MAX_LENGTH]}" for host, port, why in found]
    return f"{head}. {'; '.join(asked)}" if asked else head[:_MAX_LENGTH]


def _text(error: Exception) -> str:
    """An error as the server has sent it: redis-py takes off the codes that it knows."""
    code = getattr(error, "status_code", None) or _CODES.get(type(error))
    return f"{code} {error}" if code and not str(error).startswith(code) else str(error)


class HandshakeErrors:
    """The last error that a server has sent while redis-py greeted it, which passes some of them over."""

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
        """Note no more. What the server has said, if that tells what is wrong with it."""
        del self._parser.parse_error
        return self.error if self.error is not None and sentence_of(self.error) else None
