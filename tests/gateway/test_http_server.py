from __future__ import annotations

import asyncio
import socket
import ssl

import httpx
import pytest
import trustme

from forerun.errors import FailedPrecondition, InvalidRequest
from forerun.wire.tls import Tls
from gateway.http.app import create_app
from gateway.http.server import HttpServer
from tests.gateway.scripted import ScriptedGateway, served


@pytest.fixture
async def gateway() -> ScriptedGateway:
    return ScriptedGateway()


async def test_small_writes_leave_at_once(gateway, monkeypatch) -> None:
    accepted = []
    made = asyncio.selector_events._SelectorSocketTransport.__init__

    def noting(self, loop, sock, *args, **kwargs):
        made(self, loop, sock, *args, **kwargs)
        accepted.append(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    async with served(gateway) as url:
        monkeypatch.setattr(asyncio.selector_events._SelectorSocketTransport, "__init__", noting)
        async with httpx.AsyncClient(base_url=url) as web:
            await web.get("/livez")
    assert accepted
    assert all(accepted)


async def test_an_address_beyond_loopback_needs_tls_or_a_word(gateway) -> None:
    with pytest.raises(InvalidRequest) as refused:
        HttpServer(create_app(gateway), "0.0.0.0:0", Tls(), insecure=False)
    assert refused.value.reason == "INSECURE_BIND"
    server = HttpServer(create_app(gateway), "0.0.0.0:0", Tls(), insecure=True)
    assert await server.start() > 0
    await server.drain_and_stop(0)


async def test_a_port_that_is_taken_is_said_to_be(gateway) -> None:
    async with served(gateway) as url:
        server = HttpServer(create_app(gateway), url.removeprefix("http://"), Tls(), insecure=False)
        with pytest.raises(FailedPrecondition) as refused:
            await server.start()
    assert refused.value.reason == "CANNOT_BIND"
    assert str(refused.value) == (
        f"cannot listen on {url.removeprefix('http://')}: Address already in use; stop what listens there, or choose "
        "another with --http"
    )


async def test_stopping_cuts_what_outlasts_the_grace_and_detaches_it(gateway) -> None:
    gateway.gate.clear()
    server = HttpServer(create_app(gateway), "127.0.0.1:0", Tls(), insecure=False)
    port = await server.start()
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as web:
        body = {"prompt": "hi", "stream": True}
        async with web.stream("POST", "/v1/completions", json=body) as reply:
            lines = reply.aiter_lines()
            await anext(lines)
            await server.drain_and_stop(0)
            with pytest.raises(httpx.TransportError):
                [line async for line in lines]
    assert gateway.detached.is_set()


async def test_stopping_lets_an_answer_end_within_the_grace(gateway) -> None:
    gateway.gate.clear()
    server = HttpServer(create_app(gateway), "127.0.0.1:0", Tls(), insecure=False)
    port = await server.start()
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as web:
        body = {"prompt": "hi", "stream": True}
        async with web.stream("POST", "/v1/completions", json=body) as reply:
            lines = reply.aiter_lines()
            await anext(lines)
            stopping = asyncio.create_task(server.drain_and_stop(30))
            gateway.gate.set()
            assert [line async for line in lines if line][-1] == "data: [DONE]"
            await stopping


async def test_with_tls_only_clients_of_the_same_authority_are_heard(gateway, tmp_path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    trusting = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    known = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    certificate.configure_cert(known)
    tls = Tls(tmp_path / "cert.pem", tmp_path / "key.pem", tmp_path / "ca.pem")
    async with served(gateway, tls=tls) as url:
        async with httpx.AsyncClient(base_url=url, verify=known) as web:
            assert (await web.get("/livez")).status_code == 200
        with pytest.raises(httpx.TransportError):
            async with httpx.AsyncClient(base_url=url, verify=trusting) as web:
                await web.get("/livez")
