"""Mutual TLS: only a certificate of the right CA gets in, and only such a server is believed."""

from __future__ import annotations

import grpc
import pytest
import trustme

from forerun.errors import InvalidRequest
from forerun.v1 import drafter_pb2
from forerun.wire.peer import is_loopback_peer, peer_identities, peer_identity
from forerun.wire.tls import Tls

REQUEST = drafter_pb2.DrafterServiceGetModelRequest()


def _issue(ca: trustme.CA, folder, *names: str, trusted: trustme.CA | None = None) -> Tls:
    folder.mkdir()
    cert = ca.issue_cert(*names, common_name="cn-of-" + names[0])
    cert.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    cert.private_key_pem.write_to_path(folder / "key.pem")
    (trusted or ca).cert_pem.write_to_path(folder / "ca.pem")
    return Tls(folder / "cert.pem", folder / "key.pem", folder / "ca.pem")


@pytest.fixture(scope="module")
def authorities():
    return trustme.CA(), trustme.CA()


async def test_a_client_of_the_right_ca_gets_in_and_is_known_by_name(start, dial, tmp_path, authorities):
    ours, _ = authorities
    running = await start(_issue(ours, tmp_path / "server", "127.0.0.1"))
    seen = []
    running.servicer.unary = lambda c: seen.append(
        (peer_identity(c), peer_identities(c), is_loopback_peer(c))
    )
    client = _issue(ours, tmp_path / "client", "drafter-1.example", "drafters.example")
    reply = await running.stub(dial(running.address, client)).GetModel(REQUEST)
    assert reply.source == "scripted"
    names = ("drafter-1.example", "drafters.example", "cn-of-drafter-1.example")
    assert seen == [("drafter-1.example", names, True)]


async def test_a_client_of_another_ca_is_refused(start, dial, tmp_path, authorities):
    ours, theirs = authorities
    running = await start(_issue(ours, tmp_path / "server", "127.0.0.1"))
    client = _issue(theirs, tmp_path / "client", "drafter", trusted=ours)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await running.stub(dial(running.address, client)).GetModel(REQUEST)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert running.servicer.contexts == []


async def test_a_server_of_another_ca_is_not_believed(start, dial, tmp_path, authorities):
    ours, theirs = authorities
    running = await start(_issue(theirs, tmp_path / "server", "127.0.0.1", trusted=ours))
    client = _issue(ours, tmp_path / "client", "drafter")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await running.stub(dial(running.address, client)).GetModel(REQUEST)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert running.servicer.contexts == []


async def test_a_client_without_certificate_is_refused(start, tmp_path, authorities):
    ours, _ = authorities
    running = await start(_issue(ours, tmp_path / "server", "127.0.0.1"))
    bare = grpc.ssl_channel_credentials(root_certificates=ours.cert_pem.bytes())
    async with grpc.aio.secure_channel(running.address, bare) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await running.stub(channel).GetModel(REQUEST)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert running.servicer.contexts == []


async def test_without_tls_nobody_has_a_name(start, dial):
    running = await start()
    seen = []
    running.servicer.unary = lambda c: seen.append((peer_identity(c), is_loopback_peer(c)))
    await running.stub(dial(running.address)).GetModel(REQUEST)
    assert seen == [(None, True)]


@pytest.mark.parametrize("missing", ["cert", "key", "ca"])
def test_half_a_set_of_files_is_refused_by_name(tmp_path, authorities, missing):
    whole = _issue(authorities[0], tmp_path / "x", "a")
    files = {name: getattr(whole, name) for name in ("cert", "key", "ca")} | {missing: None}
    tls = Tls(**files)
    assert tls.enabled
    with pytest.raises(InvalidRequest) as caught:
        tls.channel_credentials()
    assert caught.value.field == f"tls-{missing}"


def test_a_file_that_is_missing_or_no_pem_is_refused_by_path(tmp_path, authorities):
    whole = _issue(authorities[0], tmp_path / "x", "a")
    with pytest.raises(InvalidRequest, match=r"nowhere\.pem"):
        Tls(tmp_path / "nowhere.pem", whole.key, whole.ca).server_credentials()
    (tmp_path / "junk.pem").write_text("junk")
    with pytest.raises(InvalidRequest, match="not a PEM"):
        Tls(tmp_path / "junk.pem", whole.key, whole.ca).server_credentials()
