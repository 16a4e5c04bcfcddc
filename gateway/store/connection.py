"""A client for any Redis-protocol deployment, from one URL."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from redis.asyncio import Redis
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import ExponentialWithJitterBackoff

from forerun.errors import InvalidRequest

# Longer than any blocking read (`Store.tail`), short enough to notice a dead server within a lease.
SOCKET_TIMEOUT_S = 4.0
CONNECT_TIMEOUT_S = 2.0
HEALTH_CHECK_S = 15
# Within one call; longer outages are the caller's to wait out.
RETRIES = 2
# A client that tails a session holds a connection; how many there are is the server's limit to set (maxclients).
MAX_CONNECTIONS = 2**31

_DEFAULT_PORT = 6379


def connect(url: str) -> tuple[Any, list[Any]]:
    """A client, and all that has to be closed in the end. Nothing is dialled before the first command.

    redis://, rediss:// and unix:// as redis-py reads them (`?ssl_ca_certs=…` and the like included);
    redis+sentinel://[user:password@]host:port,host:port/service[/db]; redis+cluster://host:port,host:port;
    with rediss+ both over TLS. Raises InvalidRequest for any other.
    """
    scheme, separator, _ = url.partition("://")
    kind, _, flavour = scheme.partition("+")
    if not separator or kind not in {"redis", "rediss", "unix"} or flavour not in {"", "sentinel", "cluster"}:
        raise InvalidRequest(f"{masked(url)!r} is not a Redis URL", reason="BAD_REDIS_URL", field="redis-url")
    try:
        if flavour == "sentinel":
            return _sentinel(url, tls=kind == "rediss")
        client = (
            _cluster(url, tls=kind == "rediss") if flavour == "cluster" else Redis.from_url(url, **_options())
        )
    except ValueError as error:
        raise InvalidRequest(
            f"{masked(url)!r} is not a Redis URL: {error}", reason="BAD_REDIS_URL", field="redis-url"
        ) from error
    return client, [client]


def _options() -> dict[str, Any]:
    return {
        "max_connections": MAX_CONNECTIONS,
        "socket_timeout": SOCKET_TIMEOUT_S,
        "socket_connect_timeout": CONNECT_TIMEOUT_S,
        "socket_keepalive": True,
        "health_check_interval": HEALTH_CHECK_S,
        "retry": Retry(ExponentialWithJitterBackoff(cap=0.2, base=0.01), RETRIES),
        "protocol": 2,
    }


def _sentinel(url: str, *, tls: bool) -> tuple[Any, list[Any]]:
    parts = urlsplit(url)
    service, _, db = parts.path.strip("/").partition("/")
    if not service:
        raise ValueError("the path names no service")
    options = _options() | {"db": int(db or 0), "username": parts.username, "password": parts.password}
    if tls:
        options["ssl"] = True
    sentinel: Any = Sentinel(  # type: ignore[no-untyped-call]
        _hosts(parts.netloc, 26379), sentinel_kwargs=_options(), **options
    )
    client = sentinel.master_for(service)
    return client, [client, *sentinel.sentinels]


def _cluster(url: str, *, tls: bool) -> Any:
    parts = urlsplit(url)
    nodes = [ClusterNode(host, port) for host, port in _hosts(parts.netloc, _DEFAULT_PORT)]
    return RedisCluster(
        startup_nodes=nodes,
        username=parts.username,
        password=parts.password,
        ssl=tls,
        **_options(),
    )


def _hosts(netloc: str, default_port: int) -> list[tuple[str, int]]:
    hosts = []
    for part in netloc.rpartition("@")[2].split(","):
        split = urlsplit(f"//{part}")
        if not split.hostname:
            raise ValueError("a host is missing")
        hosts.append((split.hostname, split.port or default_port))
    return hosts


def masked(url: str) -> str:
    """The URL without what stands before its host and after its path: that may be a password."""
    head, separator, rest = url.partition("://")
    return head + separator + rest.rpartition("@")[2].partition("?")[0]
