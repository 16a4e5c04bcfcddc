"""A drafter dials only what its list allows."""

from __future__ import annotations

import pytest

from drafter_service.allow_list import AllowList
from forerun.errors import InvalidRequest, PermissionRefused

K8S = ("verifier-*.verifiers.forerun.svc:7001", "10.0.*:*", "[fd00::*]:7001")


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.3.2.1:7001", "localhost:7001", "[::1]:7001"])
def test_loopback_means_every_port_of_this_machine(address):
    assert AllowList.parse(["loopback"]).check(address) == address


@pytest.mark.parametrize(
    "address", ["10.0.0.1:7001", "127.evil.example:7001", "localhost.evil.example:1", "0.0.0.0:7001"]
)
def test_loopback_means_nothing_else(address):
    with pytest.raises(PermissionRefused) as caught:
        AllowList.parse(["loopback"]).check(address)
    assert (caught.value.reason, caught.value.field) == ("VERIFIER_NOT_ALLOWED", "verifier_address")


@pytest.mark.parametrize(
    "address",
    [
        "verifier-0.verifiers.forerun.svc:7001",
        "VERIFIER-0.verifiers.forerun.svc:7001",
        "10.0.3.4:9",
        "[fd00::7]:7001",
    ],
)
def test_globs_match_host_and_port(address):
    assert AllowList.parse(K8S).check(address)


@pytest.mark.parametrize(
    "address", ["verifier-0.verifiers.forerun.svc:7002", "127.0.0.1:7001", "10.1.3.4:9", "[fe80::7]:7001"]
)
def test_what_no_glob_matches_is_refused(address):
    with pytest.raises(PermissionRefused):
        AllowList.parse(K8S).check(address)


def test_an_empty_list_allows_nothing():
    with pytest.raises(PermissionRefused):
        AllowList.parse([]).check("127.0.0.1:7001")


@pytest.mark.parametrize("text", ["host", "host:", ":7", "unix:/tmp/x:"])
def test_what_is_no_glob_is_refused_at_start(text):
    with pytest.raises(InvalidRequest):
        AllowList.parse([text])


def test_what_is_no_address_is_a_bad_request():
    with pytest.raises(InvalidRequest):
        AllowList.parse(["*:*"]).check("nonsense")
