"""Clients for the same servers as a given client: for event loops, and for each node of a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, cast

from redis import ConnectionPool, Redis
from redis.asyncio import Redis as AsyncRedis
from redis.asyncio import RedisCluster as AsyncRedisCluster
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.connection import Connection as AsyncConnection
from redis.asyncio.connection import ConnectionPool as AsyncConnectionPool
from redis.asyncio.connection import SSLConnection as AsyncSSLConnection
from redis.asyncio.connection import UnixDomainSocketConnection as AsyncUnixConnection
from redis.cluster import RedisCluster
from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.sentinel import SentinelConnectionPool, SentinelManagedConnection, SentinelManagedSSLConnection

Address = tuple[str, int]

#: Connection options with the same meaning in both kinds. Others are objects of one kind, or internal to the client.
_OPTIONS: Final = {
    *("host", "port", "path", "db", "username", "password", "credential_provider", "protocol"),
    *("socket_timeout", "socket_connect_timeout", "socket_keepalive", "socket_keepalive_options", "socket_read_size"),
    *("encoding", "encoding_errors", "client_name", "lib_name", "lib_version"),
}
_TLS_OPTIONS: Final = {
    *("ssl_keyfile", "ssl_certfile", "ssl_cert_reqs", "ssl_include_verify_flags", "ssl_exclude_verify_flags"),
    *("ssl_ca_certs", "ssl_ca_data", "ssl_ca_path", "ssl_check_hostname", "ssl_min_version", "ssl_ciphers"),
    "ssl_password",
}
#: Certificate checks that only the kind for threads supports.
_ONLY_IN_THREADS: Final = {"ssl_validate_ocsp", "ssl_validate_ocsp_stapled"}


class SentinelConnection(AsyncConnection):
    """A connection to the server that is the master when it is opened.

    find: asks the Sentinels, in a thread; Sentinel clients for event loops would be bound to one loop.
    """

    def __init__(self, *, find: Callable[[], Address], **options: Any) -> None:
        super().__init__(**options)
        self._find = find

    async def connect(self) -> None:
        self.host, self.port = await asyncio.to_thread(self._find)
        await super().connect()  # type: ignore[no-untyped-call]


class SentinelTLSConnection(SentinelConnection, AsyncSSLConnection):
    """`SentinelConnection` over TLS."""


_CLASSES: Final[dict[type, type[AbstractConnection]]] = {
    Connection: AsyncConnection,
    SSLConnection: AsyncSSLConnection,
    UnixDomainSocketConnection: AsyncUnixConnection,
    SentinelManagedConnection: SentinelConnection,
    SentinelManagedSSLConnection: SentinelTLSConnection,
}


def async_client_of(client: Redis) -> AsyncRedis | None:
    """Return a redis.asyncio client with the same address, credentials and timeouts; `None` if that is impossible.

    It is impossible with a connection class of the project, and if certificates are checked by OCSP.
    """
    pool = client.connection_pool
    connection_class, options = _CLASSES.get(pool.connection_class), pool.connection_kwargs
    if connection_class is None or any(options.get(name) for name in _ONLY_IN_THREADS):
        return None
    options_given = {name: value for name, value in options.items() if name in _OPTIONS | _TLS_OPTIONS}
    if issubclass(connection_class, SentinelConnection):
        options_given["find"] = cast(SentinelConnectionPool, pool).get_master_address
    return AsyncRedis(
        connection_pool=AsyncConnectionPool(connection_class, getattr(pool, "max_connections", None), **options_given)
    )


class ClientFactory(NamedTuple):
    """How to connect to the nodes of a cluster.

    addresses: to start with. options: of every connection. tls: True if it is encrypted.
    remap: returns the address to use for one that the cluster reports.
    """

    addresses: tuple[Address, ...]
    options: Mapping[str, Any]
    tls: bool = False
    remap: Callable[[Address], Address] | None = None

    def node(self, address: Address, **changed: Any) -> Redis:
        """Return a client for one node. changed: options that differ for it."""
        connection_class = SSLConnection if self.tls else Connection
        return Redis.from_pool(ConnectionPool(connection_class, **self._given(address) | changed))

    def async_node(self, address: Address) -> AsyncRedis:
        """Return a client for one node, for event loops."""
        connection_class = AsyncSSLConnection if self.tls else AsyncConnection
        return AsyncRedis(connection_pool=AsyncConnectionPool(connection_class, **self._given(address)))

    @property
    def only_in_threads(self) -> bool:
        """True if no client for event loops supports these options."""
        return any(self.options.get(name) for name in _ONLY_IN_THREADS)

    def _given(self, address: Address) -> dict[str, Any]:
        known = _OPTIONS | _TLS_OPTIONS | _ONLY_IN_THREADS if self.tls else _OPTIONS
        options_given = {name: value for name, value in self.options.items() if name in known}
        options_given.pop("db", None)  # a cluster has only one
        options_given["max_connections"] = self.options.get("max_connections")  # to each node
        return options_given | {"host": address[0], "port": address[1]}


def client_factory(client: RedisCluster | AsyncRedisCluster) -> ClientFactory:
    """Return how a cluster's client connects to its nodes."""
    options: dict[str, Any] = client.get_connection_kwargs()
    encrypted = issubclass(options.get("connection_class", Connection), SSLConnection | AsyncSSLConnection)
    nodes: Any = getattr(client, "startup_nodes", None)
    if nodes is None:  # redis-py before 7.2
        nodes = client.nodes_manager.startup_nodes.values()
    addresses = tuple((str(node.host), int(node.port)) for node in nodes)
    remap: Any = client.nodes_manager.remap_host_port
    return ClientFactory(addresses, options, bool(options.get("ssl")) or encrypted, lambda address: remap(*address))
