"""A RedisCluster that can be created while the cluster is out of reach."""

from __future__ import annotations

from collections.abc import Sequence
from threading import RLock
from typing import Any

from redis.cluster import ClusterNode, RedisCluster
from redis.connection import parse_url
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisClusterException

from ...locks import freed_by_fork
from ..connections.clients import Address, ClientFactory, client_factory


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


def client_factory_of(client: Any) -> ClientFactory:
    """Return how a cluster client of any kind connects to its nodes."""
    return client.client_factory() if isinstance(client, LazyRedisCluster) else client_factory(client)
