"""What our own connections save: `python -m benchmarks.connections` (REDIS_SERVER and REDIS_URL select the server).

The same calls of our script, by 2,000 callers in turn, are sent in four ways: by `Redis.evalsha`, packed over a
connection of redis-py's pool, packed over the engine's own transport, and packed over a bare socket. The transport has
a deadline, as in a project. `Redis.evalsha` packs its arguments itself, so the time of our packing is measured
too, and included in the two rows of the transport. All run on one processor, together with the server.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from functools import partial
from itertools import cycle
from typing import Any, Final

import hiredis
import redis

from django_ratelimiter.engine import Charge
from django_ratelimiter.engine.redis import RedisEngine
from django_ratelimiter.engine.redis.protocol import ScriptMode

from .engine import CHARGES, Calls, main

CALLERS: Final = 2_000
#: Seconds; longer than a process may have to wait on a busy machine.
DEADLINE: Final = 1.0


def charges_of(caller: int, number: int) -> Sequence[Charge]:
    """Return the charges of one caller, one per rule. They count no usage, so that no call contains a minute."""
    return [charge._replace(key=f"{caller}:{charge.key}", usage=None) for charge in CHARGES[:number]]


def contestants(client: redis.Redis) -> Calls:
    """Return the calls to time, `Redis.evalsha` first."""
    engine = RedisEngine(client, "benchmark", deadline=DEADLINE)
    engine.publish(1)
    calls: Calls = {}
    for number in (1, 3):
        name = f"{number} charge{'s' if number > 1 else ''}"
        callers = [charges_of(caller, number) for caller in range(CALLERS)]
        packed = [pack(engine, charges) for charges in callers]
        calls |= {
            f"{name}: Redis.evalsha": partial(by_client, client, cycle(list(map(arguments, packed)))),
            f"{name}: redis-py's pool, packed": partial(by_pool, client.connection_pool, cycle(packed)),
            f"{name}: our transport, packed": partial(by_transport, engine, cycle(packed)),
            f"{name}: bare socket, packed": partial(by_socket, connected(client), hiredis.Reader(), cycle(packed)),
            f"{name}: packing alone": partial(by_packing, engine, cycle(callers)),
        }
    return calls


def pack(engine: RedisEngine, charges: Sequence[Charge]) -> bytes:
    """Return one call as the engine packs it."""
    return engine.encode(ScriptMode.CHECK, charges, (), 1, None, (time.time_ns() // 1_000,))


def arguments(packed: bytes) -> tuple[Any, ...]:
    """Return the arguments of `Redis.evalsha` for the same call."""
    reader = hiredis.Reader()
    reader.feed(packed)
    _command, sha, number, *words = reader.gets()
    return sha.decode(), int(number), *words


def by_client(client: redis.Redis, calls: cycle[tuple[Any, ...]]) -> object:
    return client.evalsha(*next(calls))


def by_pool(pool: redis.ConnectionPool, calls: cycle[bytes]) -> object:
    connection = pool.get_connection()
    try:
        connection.send_packed_command([next(calls)])
        return connection.read_response()
    finally:
        pool.release(connection)


def by_transport(engine: RedisEngine, calls: cycle[bytes]) -> object:
    return engine._transport.call(next(calls))


def by_socket(link: socket.socket, reader: hiredis.Reader, calls: cycle[bytes]) -> object:
    link.sendall(next(calls))
    reply: object = False
    while reply is False:
        reader.feed(link.recv(4_096))
        reply = reader.gets()
    return reply


def by_packing(engine: RedisEngine, callers: cycle[Sequence[Charge]]) -> object:
    return pack(engine, next(callers))


def connected(client: redis.Redis) -> socket.socket:
    """Return a socket to the client's server and database."""
    options = client.connection_pool.connection_kwargs
    link = socket.create_connection((options["host"], options["port"]))
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link.sendall(b"SELECT %d\r\n" % (options.get("db") or 0))
    assert link.recv(64) == b"+OK\r\n"
    return link


if __name__ == "__main__":
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])  # our own server inherits it
    main(contestants)
