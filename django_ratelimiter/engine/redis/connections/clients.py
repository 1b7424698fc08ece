"""Clients for the same servers as a given client: for event loops, and for each node of a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from threading import RLock
from typing import Any, Final, NamedTuple, cast

from redis import ConnectionPool, Redis
from redis.asyncio import Redis as AsyncRedis
from redis.asyncio import RedisCluster as AsyncRedisCluster
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.connection import Connection as AsyncConnection
from redis.asyncio.connection import ConnectionPool as AsyncConnectionPool
from redis.asyncio.connection import SSLConnection as AsyncSSLConnection
from redis.asyncio.connection import UnixDomainSocketConnection as AsyncUnixConnection
from redis.cluster import ClusterNode, RedisCluster
from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection, parse_url
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisClusterException
from redis.sentinel import SentinelConnectionPool, SentinelManagedConnection, SentinelManagedSSLConnection

from ...locks import freed_by_fork

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


class LazyRedisCluster(RedisCluster):
    """Connects at its first use, while RedisCluster connects when it is created, and raises if it cannot.

    url: of one node, with the scheme, user and password for all. addresses: more nodes to start with.
    options: for RedisCluster. Raises ValueError for a URL with a database other than 0, or of a socket file.
    """

    def __init__(self, url: str, addresses: Sequence[Address] = (), **options: Any) -> None:
        parsed = parse_url(url)
        if parsed.pop("db", 0):
            raise ValueError("A cluster has database 0 only.")
        if "path" in parsed:
            raise ValueError("The nodes of a cluster are reached by host and port.")
        encrypted = parsed.pop("connection_class", None) is not None
        first = (parsed.pop("host", "localhost"), parsed.pop("port", 6379))
        self._options: dict[str, Any] = {"ssl": True} if encrypted else {}
        self._options |= parsed | options
        self._addresses = tuple(dict.fromkeys([first, *((str(host), int(port)) for host, port in addresses)]))
        self._is_connected = False
        self._connecting = freed_by_fork(RLock())

    def __getattr__(self, name: str) -> Any:
        """Called only for missing attributes: before the first use these are nearly all."""
        if not name.startswith("__") and "_connecting" in self.__dict__:
            with self._connecting:
                if not self._is_connected:
                    self._connect()
        return object.__getattribute__(self, name)

    def _connect(self) -> None:
        self._is_connected = True  # from now on a missing attribute is an error
        try:
            super().__init__(startup_nodes=[ClusterNode(*address) for address in self._addresses], **self._options)
        except RedisClusterException as error:  # it is not a RedisError
            self._is_connected = False
            raise RedisConnectionError(str(error)) from error
        except BaseException:
            self._is_connected = False
            raise

    def client_factory(self) -> ClientFactory:
        """Return how it connects to its nodes, without connecting."""
        options = {name: value for name, value in self._options.items() if name != "address_remap"}
        return ClientFactory(self._addresses, options, bool(options.get("ssl")), self._options.get("address_remap"))

    def close(self) -> None:
        """Close all open connections."""
        if self.__dict__.get("_is_connected"):
            super().close()


def client_factory(client: RedisCluster | AsyncRedisCluster) -> ClientFactory:
    """Return how a cluster's client connects to its nodes."""
    if isinstance(client, LazyRedisCluster):
        return client.client_factory()
    options: dict[str, Any] = client.get_connection_kwargs()
    encrypted = issubclass(options.get("connection_class", Connection), SSLConnection | AsyncSSLConnection)
    nodes: Any = getattr(client, "startup_nodes", None)
    if nodes is None:  # redis-py before 7.2
        nodes = client.nodes_manager.startup_nodes.values()
    addresses = tuple((str(node.host), int(node.port)) for node in nodes)
    remap: Any = client.nodes_manager.remap_host_port
    return ClientFactory(addresses, options, bool(options.get("ssl")) or encrypted, lambda address: remap(*address))
