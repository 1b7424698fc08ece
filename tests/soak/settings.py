"""The settings of the sites under load: those of the tests, on a Redis Cluster. SOAK_PORTS: the ports of its nodes."""

import os

from django_ratelimiter.limiter import events
from example_project.redis_server import HOST
from tests.settings import *  # noqa: F403
from tests.settings import CACHES, MIDDLEWARE

# A process notes the callers of the hour, and whom it has told of, and forgets all when so many are noted. With few it
# is full within minutes: what still grows is a leak.
events.MAX_NOTIFIED = 1_000  # type: ignore[misc]

PORTS = [int(port) for port in os.environ["SOAK_PORTS"].split(",")]
MIDDLEWARE = ["example_project.middleware.name_the_process", *MIDDLEWARE]
CACHES["ratelimit"] = {
    "BACKEND": "django_redis.cache.RedisCache",
    "LOCATION": f"redis://{HOST}:{PORTS[0]}/0",
    "OPTIONS": {
        "CONNECTION_FACTORY": "django_ratelimiter.redis_cluster.ConnectionFactory",
        "STARTUP_NODES": [(HOST, port) for port in PORTS],
        "SOCKET_TIMEOUT": 0.3,
        "SOCKET_CONNECT_TIMEOUT": 0.3,
    },
}
RATELIMITER = {"CACHE_ALIAS": "ratelimit", "TRUSTED_PROXIES": [HOST]}
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"stderr": {"class": "logging.StreamHandler"}},
    "root": {"handlers": ["stderr"], "level": "ERROR"},
}
