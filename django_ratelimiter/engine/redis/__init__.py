"""The engine on Redis, Valkey, and clusters of them; the only package that imports redis-py."""

from .async_engine import AsyncRedisEngine
from .cluster.sharding import SHARDS
from .connections.clients import LazyRedisCluster
from .engine import CLIENT_ERRORS, RedisEngine

__all__ = ["CLIENT_ERRORS", "SHARDS", "AsyncRedisEngine", "LazyRedisCluster", "RedisEngine"]
