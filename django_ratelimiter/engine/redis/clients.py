"""The client for event loops that reaches the same server as a client for threads."""

from __future__ import annotations

from typing import Final

from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis.asyncio.connection import AbstractConnection, ConnectionPool
from redis.asyncio.connection import Connection as AsyncConnection
from redis.asyncio.connection import SSLConnection as AsyncSSLConnection
from redis.asyncio.connection import UnixDomainSocketConnection as AsyncUnixConnection
from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection

_CLASSES: Final[dict[type, type[AbstractConnection]]] = {
    Connection: AsyncConnection,
    SSLConnection: AsyncSSLConnection,
    UnixDomainSocketConnection: AsyncUnixConnection,
}

#: Options of connections that mean the same to both kinds. Others are objects of one kind, or the client's own affair.
_OPTIONS: Final = {
    *("host", "port", "path", "db", "username", "password", "credential_provider", "protocol"),
    *("socket_timeout", "socket_connect_timeout", "socket_keepalive", "socket_keepalive_options", "socket_read_size"),
    *("encoding", "encoding_errors", "client_name", "lib_name", "lib_version"),
    *("ssl_keyfile", "ssl_certfile", "ssl_cert_reqs", "ssl_include_verify_flags", "ssl_exclude_verify_flags"),
    *("ssl_ca_certs", "ssl_ca_data", "ssl_ca_path", "ssl_check_hostname", "ssl_min_version", "ssl_ciphers"),
    "ssl_password",
}
#: Checks of a server's certificate that only the kind for threads can make.
_ONLY_IN_THREADS: Final = ("ssl_validate_ocsp", "ssl_validate_ocsp_stapled")


def asynchronous(client: Redis) -> AsyncRedis | None:
    """A client of redis.asyncio with the same address, credentials and timeouts; `None` if there can be none.

    That is so behind Sentinel, with connections of the project's own class, and where certificates are checked by OCSP.
    """
    pool = client.connection_pool
    connection_class, options = _CLASSES.get(pool.connection_class), pool.connection_kwargs
    if connection_class is None or any(options.get(name) for name in _ONLY_IN_THREADS):
        return None
    given = {name: value for name, value in options.items() if name in _OPTIONS}
    return AsyncRedis(connection_pool=ConnectionPool(connection_class=connection_class, **given))
