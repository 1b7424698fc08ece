"""Redis Clusters and Sentinels of a test's own: real servers on free ports, which may be killed and started again."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, Self

import redis
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.retry import Retry

from django_ratelimiter.exceptions import EngineUnavailable
from example_project.redis_server import HOST, RedisServer, free_port

#: Milliseconds of silence after which a master counts as failed: short, so that a failover takes about two seconds.
NODE_TIMEOUT_MS: Final = 500
#: The same where none fails: longer than a busy machine keeps one silent.
STEADY_MS: Final = 120_000
SLOTS: Final = 16_384
#: Only a hang takes so long. A Sentinel that the machine has stopped for two seconds does nothing for thirty.
WAIT_SECONDS: Final = 120.0
BACKEND: Final = "django_redis.cache.RedisCache"


def until(true: Callable[[], Any], what: str) -> Any:
    """Wait until something is true, and return it. What no server answers is not."""
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        try:
            if found := true():
                return found
        except (redis.RedisError, OSError, EngineUnavailable):
            pass
        time.sleep(0.02)
    raise AssertionError(f"Not within {WAIT_SECONDS:.0f} s: {what}.")


@contextmanager
def stopped(server: RedisServer) -> Iterator[None]:
    """A server that hangs meanwhile."""
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


class ServerWith(RedisServer):
    """A server with options of its own, by name. further_ports: the options that take a port beside the first."""

    def __init__(self, *further_ports: str, binary: str | Path | None = None, **options: str) -> None:
        super().__init__(binary=binary)
        self._options = {name.replace("_", "-"): value for name, value in options.items()}
        self._further_ports = further_ports
        self._hangs = False
        self.ports: tuple[int, ...] = (0,)

    def _command(self, folder: str) -> list[str]:
        assert self._port
        if self.ports[0] != self._port:  # the first attempt, or the next after one that failed
            self.ports = self._port, *(free_port() for _ in self._further_ports)
            self._options |= dict(zip(self._further_ports, map(str, self.ports[1:]), strict=True))
        options = (part for name, value in self._options.items() for part in (f"--{name}", value))
        return [*super()._command(folder), *options]

    @property
    def is_running(self) -> bool:
        """Whether it was started, not stopped or killed since, and does not hang."""
        return self._watched is not None and not self._hangs

    def hang(self) -> None:
        """Answer nobody any more, until `start` or `stop`."""
        os.kill(self.pid, signal.SIGSTOP)
        self._hangs = True

    def start(self) -> None:
        """Start it, or let it go on."""
        if self._hangs:
            os.kill(self.pid, signal.SIGCONT)
            self._hangs = False
        super().start()

    def stop(self) -> None:
        """End it, hanging or not."""
        super().stop()
        self._hangs = False

    def client(self) -> redis.Redis:
        """A client of this server alone, which tries everything once."""
        return redis.Redis(host=HOST, port=self.port, protocol=2, retry=Retry(NoBackoff(), 0))

    def ask(self, *command: Any) -> Any:
        """One command to this server alone, and its bare reply."""
        with self.client() as client:
            connection = client.connection_pool.get_connection()
            connection.send_command(*command)
            return connection.read_response()


class _Servers:
    """Servers that start with the block and end with it."""

    servers: list[ServerWith]

    def __init__(self) -> None:
        self._stack = ExitStack()

    @property
    def running(self) -> list[ServerWith]:
        """The servers that have not been killed and do not hang."""
        return [server for server in self.servers if server.is_running]

    @property
    def masters(self) -> list[ServerWith]:
        """The running servers that take writes: under Sentinel none or two while another one takes over."""
        return [server for server in self.running if server.ask("ROLE")[0] == b"master"]

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for server in self.servers:
                stack.enter_context(server)
            self._form(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stack.close()

    def _form(self, stack: ExitStack) -> None:
        """Let them find each other."""
        raise NotImplementedError


class Cluster(_Servers):
    """So many masters, each with so many replicas, that share all slots evenly.

    full_coverage: whether all of them stop while the slots of one are not served, as servers do by default.
    steady: none counts as failed, however busy the machine is, and no replica takes over.
    further_ports, options: as for ServerWith.
    """

    def __init__(
        self,
        masters: int = 3,
        replicas: int = 1,
        *further_ports: str,
        full_coverage: bool = True,
        steady: bool = False,
        **options: Any,
    ) -> None:
        options |= {
            "cluster_enabled": "yes",
            "cluster_node_timeout": str(NODE_TIMEOUT_MS),
            "cluster_require_full_coverage": "yes" if full_coverage else "no",
            "cluster_replica_validity_factor": "0",
            "cluster_replica_no_failover": "yes" if steady else "no",
            "cluster_allow_replica_migration": "no",
            "repl_diskless_sync_delay": "0",
        }
        super().__init__()
        self._masters, self._steady = masters, steady
        self.servers = [ServerWith("cluster-port", *further_ports, **options) for _ in range(masters * (1 + replicas))]

    @property
    def urls(self) -> list[str]:
        """The addresses of all servers."""
        return [server.url for server in self.servers]

    def alias(self, **options: Any) -> dict[str, Any]:
        """The entry of CACHES for django-redis."""
        nodes = [(HOST, server.port) for server in self.servers]
        factory = "django_ratelimiter.redis_cluster.ConnectionFactory"
        options = {"CONNECTION_FACTORY": factory, "STARTUP_NODES": nodes, **options}
        return {"BACKEND": BACKEND, "LOCATION": self.urls[0], "OPTIONS": options}

    def owner(self, key: str | bytes, by: ServerWith | None = None) -> ServerWith:
        """The server that has the slot of a key, by the word of another one."""
        slot = key_slot(key if isinstance(key, bytes) else key.encode())
        for start, end, (_, port, *_), *_ in (by or self.running[0]).ask("CLUSTER", "SLOTS"):
            if start <= slot <= end:
                return next(each for each in self.servers if each.port == port)
        raise AssertionError(f"Nobody has slot {slot}.")

    def until_it_works(self) -> None:
        """Wait until every running server finds the cluster in order, with all slots served by a running master."""
        until(lambda: all(self._in_order(server) for server in self.running), "the cluster is in order")

    def revive(self) -> None:
        """Start all that was killed or hangs."""
        for server in self.servers:
            server.start()
        self.until_it_works()

    def flush(self) -> None:
        """Forget all keys."""
        for server in self.masters:
            server.ask("FLUSHALL")

    def _form(self, stack: ExitStack) -> None:
        first = self.servers[0]
        bounds = [SLOTS * number // self._masters for number in range(self._masters + 1)]
        for number, server in enumerate(self.servers):
            server.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            if number < self._masters:
                server.ask("CLUSTER", "ADDSLOTSRANGE", bounds[number], bounds[number + 1] - 1)
            first.ask("CLUSTER", "MEET", HOST, *server.ports[:2])
        until(lambda: all(self._knows_all(server) for server in self.servers), "all servers know each other")
        for number, server in enumerate(self.servers[self._masters :]):
            server.ask("CLUSTER", "REPLICATE", self.servers[number % self._masters].ask("CLUSTER", "MYID"))
        self.until_it_works()
        if self._steady:  # not before: they would tell each other of changes less often
            for server in self.servers:
                server.ask("CONFIG", "SET", "cluster-node-timeout", STEADY_MS)
            self.until_it_works()

    def _knows_all(self, server: ServerWith) -> bool:
        nodes = server.ask("CLUSTER", "NODES")
        return len(nodes.splitlines()) == len(self.servers) and b"handshake" not in nodes

    def _in_order(self, server: ServerWith) -> bool:
        info = server.ask("CLUSTER", "INFO")
        role = server.ask("ROLE")
        live = {each.port for each in self.running}
        ranges = server.ask("CLUSTER", "SLOTS")
        covered = sum(end - start + 1 for start, end, (_, port, *_), *_ in ranges if port in live)
        # A master passes nothing on to a replica that has everything, but has not yet said so.
        waits = b"state=wait_bgsave", b"state=send_bulk"
        replication = server.ask("INFO", "replication")
        linked = not any(wait in replication for wait in waits) and (role[0] == b"master" or role[3] == b"connected")
        return b"cluster_state:ok" in info and covered == SLOTS and linked and len(ranges) >= self._masters


class Watched(_Servers):
    """A master with a replica under three Sentinels, which call it `name`.

    steady: none counts as failed, however busy the machine is; a Sentinel may be asked for a failover.
    """

    name: Final = "mymaster"

    def __init__(self, *, steady: bool = False) -> None:
        super().__init__()
        self._steady = steady
        self.servers = [ServerWith(repl_diskless_sync_delay="0") for _ in range(2)]
        self.sentinels: list[Sentinel] = []

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Where the Sentinels are."""
        return [(HOST, sentinel.port) for sentinel in self.sentinels]

    def alias(self) -> dict[str, Any]:
        """The entry of CACHES for django-redis."""
        options = {
            "CLIENT_CLASS": "django_redis.client.SentinelClient",
            "CONNECTION_FACTORY": "django_redis.pool.SentinelConnectionFactory",
            "SENTINELS": self.addresses,
        }
        return {"BACKEND": BACKEND, "LOCATION": f"redis://{self.name}/0", "OPTIONS": options}

    @property
    def master(self) -> ServerWith:
        """The one server that takes writes."""
        (master,) = self.masters
        return master

    @property
    def settled(self) -> ServerWith | None:
        """The master, if all Sentinels name it and find it well: a loaded machine keeps one silent for long."""
        masters = self.masters
        if len(masters) == 1 and all(self._finds_well(sentinel, masters[0].port) for sentinel in self.sentinels):
            return masters[0]
        return None

    def revive(self) -> None:
        """Start what was killed or hangs, as a replica of the master, as Sentinel has it after ten seconds."""
        master = next(server for server in self.servers if server.port == self._named)
        for server in self.servers:
            server.start()
            if server is not master and server.ask("ROLE")[0] == b"master":
                server.ask("REPLICAOF", HOST, master.port)
        until(lambda: self.settled and all(map(self._finds_its_replica_well, self.sentinels)), "all follow the master")

    def flush(self) -> None:
        """Forget all keys, on the replica as well."""
        self.master.ask("FLUSHALL")
        until(lambda: not any(server.ask("DBSIZE") for server in self.servers), "the replica has forgotten them")

    @property
    def _named(self) -> int:
        """The port of the master that all Sentinels name."""

        def agreed() -> int | None:
            ports = {int(each.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.name)[1]) for each in self.sentinels}
            return ports.pop() if len(ports) == 1 else None

        return int(until(agreed, "the Sentinels name one master"))

    def _form(self, stack: ExitStack) -> None:
        master, replica = self.servers
        replica.ask("REPLICAOF", HOST, master.port)
        until(lambda: replica.ask("ROLE")[3] == b"connected", "the replica follows its master")
        self.sentinels = [stack.enter_context(Sentinel(self.name, master.port, self._steady)) for _ in range(3)]
        until(lambda: all(map(self._sees_all, self.sentinels)), "the Sentinels know each other and the replica")

    def _finds_well(self, sentinel: Sentinel, port: int) -> bool:
        seen = self._seen_by(sentinel)
        return bool(seen["port"] == port and not seen["is_sdown"] and not seen["is_odown"])

    def _finds_its_replica_well(self, sentinel: Sentinel) -> bool:
        with sentinel.client() as client:
            (seen,) = client.sentinel_slaves(self.name)
            return not seen["is_sdown"] and not seen["is_disconnected"] and seen["master-link-status"] == "ok"

    def _sees_all(self, sentinel: Sentinel) -> bool:
        seen = self._seen_by(sentinel)
        return bool(seen["num-slaves"] == 1 and seen["num-other-sentinels"] == 2)

    def _seen_by(self, sentinel: Sentinel) -> dict[str, Any]:
        """Return what a Sentinel knows of the master, by the command that clients find it with.

        redis-py 6.4 and 7.0 cannot read the reply to SENTINEL MASTER.
        """
        with sentinel.client() as client:
            return dict(client.sentinel_masters()[self.name])


class Sentinel(ServerWith):
    """One Sentinel. Its master counts as failed after some silence, if another one agrees. steady: as for Watched."""

    def __init__(self, name: str, master_port: int, steady: bool) -> None:
        super().__init__()
        self._configuration = (
            f"sentinel monitor {name} {HOST} {master_port} 2\n"
            f"sentinel down-after-milliseconds {name} {STEADY_MS if steady else NODE_TIMEOUT_MS}\n"
            f"sentinel failover-timeout {name} {STEADY_MS if steady else 3_000}\n"
        )

    def _command(self, folder: str) -> list[str]:
        file = Path(folder, "sentinel.conf")
        file.write_text(f"bind {HOST}\nport {self._port}\ndir {folder}\n{self._configuration}")
        return [str(self.binary), str(file), "--sentinel"]
