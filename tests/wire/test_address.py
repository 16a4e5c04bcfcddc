"""host:port is read strictly, and what others dial is never a wildcard."""

from __future__ import annotations

import pytest

from forerun.errors import InvalidRequest
from forerun.wire.address import Address, advertised


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:7001", "127.0.0.1", 7001),
        ("[::1]:0", "::1", 0),
        ("pod-0.verifiers:7001", "pod-0.verifiers", 7001),
    ],
)
def test_an_address_reads_and_writes_the_same(text, host, port):
    address = Address.parse(text)
    assert (address.host, address.port, str(address)) == (host, port, text)


@pytest.mark.parametrize(
    "text", ["", "7001", "host", "host:", ":7001", "host:x", "host:70000", "::1:7001", "a:-1", "[h]:1"]
)
def test_anything_else_is_refused_with_the_flag_named(text):
    with pytest.raises(InvalidRequest) as caught:
        Address.parse(text, "listen")
    assert caught.value.field == "listen"


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.0.9", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),  # noqa: S104
        ("10.0.0.1", False),
        ("example.org", False),
    ],
)
def test_loopback_is_this_machine_alone(host, loopback):
    assert Address(host, 1).is_loopback is loopback


def test_a_wildcard_must_be_told_what_to_advertise():
    assert advertised("127.0.0.1:0", 4711, None) == "127.0.0.1:4711"
    assert advertised("0.0.0.0:7001", 7001, "10.1.2.3:0") == "10.1.2.3:7001"
    assert advertised("[::]:7001", 7001, "pod.verifiers:9") == "pod.verifiers:9"
    for wildcard in ("0.0.0.0:7001", "[::]:7001"):
        with pytest.raises(InvalidRequest) as caught:
            advertised(wildcard, 7001, None)
        assert caught.value.reason == "ADVERTISE_MISSING"
