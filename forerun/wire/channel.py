"""Connections to other services."""

from __future__ import annotations

import grpc

from forerun.wire.tls import Tls

# Largest request a server takes: a full context of token ids is well below 1 MB, a window of 64-token
# laws below 100 kB.
MAX_MESSAGE_BYTES = 16 * 1024 * 1024
# Largest reply a client takes: the tokenizer files of the largest vocabularies are above 30 MB.
MAX_REPLY_BYTES = 64 * 1024 * 1024
# A peer that vanished without closing is noticed within the sum of the two.
KEEPALIVE_TIME_MS = 10_000
KEEPALIVE_TIMEOUT_MS = 5_000

CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.keepalive_time_ms", KEEPALIVE_TIME_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    # Streams are silent while a long prompt is prefilled; they are pinged all the same.
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_REPLY_BYTES),
    # A lost replica is back in seconds or replaced: the default back-off of two minutes would outlast it.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # Each channel owns its connection: closing one never touches another, and `close` really closes.
    ("grpc.use_local_subchannel_pool", 1),
    # Replicas are dialled directly, whatever proxy the environment names for the web.
    ("grpc.enable_http_proxy", 0),
)


def open_channel(address: str, tls: Tls, *, server_name: str = "") -> grpc.aio.Channel:
    """A channel to `host:port`, connecting on first use; mutual TLS when `tls` is enabled.

    The caller closes it. `server_name`: the name the peer's certificate carries where that is not `address`
    itself (a pod dialled by IP that is certified under its service's name).
    """
    if not tls.enabled:
        return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
    named = (("grpc.ssl_target_name_override", server_name),) if server_name else ()
    return grpc.aio.secure_channel(address, tls.channel_credentials(), options=(*CHANNEL_OPTIONS, *named))
