"""Lets a django-redis cache connect to a Redis Cluster, which django-redis itself does not support.

"OPTIONS": {"CONNECTION_FACTORY": "django_ratelimiter.redis_cluster.ConnectionFactory"}
"""

from __future__ import annotations

from threading import Lock
from typing import Any, ClassVar

from django.core.exceptions import ImproperlyConfigured
from django_redis import pool

from .engine.locks import freed_by_fork
from .engine.redis import LazyRedisCluster


class ConnectionFactory(pool.ConnectionFactory):  # type: ignore[misc]
    """Makes one client for each process, address and set of options. The client connects at its first use.

    LOCATION names one node; OPTIONS["STARTUP_NODES"], a list of (host, port), names more nodes to start with. The other
    OPTIONS are those of django-redis: timeouts, user, password, and CONNECTION_POOL_KWARGS for anything else.
    """

    _clients: ClassVar[dict[str, LazyRedisCluster]] = {}
    _making: ClassVar[Lock] = freed_by_fork(Lock())

    def connect(self, url: str) -> LazyRedisCluster:
        """Return the client of a cluster. Raises ImproperlyConfigured for an address that no cluster can have."""
        options = self.make_connection_params(url) | self.pool_cls_kwargs | self.redis_client_cls_kwargs
        options.pop("parser_class")  # redis-py chooses it
        nodes = self.options.get("STARTUP_NODES", ())
        key = repr((sorted(options.items()), nodes))
        with self._making:
            client = self._clients.get(key)
            if client is None:
                try:
                    client = LazyRedisCluster(options.pop("url"), nodes, **options)
                except (TypeError, ValueError) as error:
                    raise ImproperlyConfigured(f"LOCATION or STARTUP_NODES of a cluster: {error}") from error
                self._clients[key] = client
            return client

    def disconnect(self, connection: Any) -> None:
        """Close the connections of a client."""
        connection.close()
