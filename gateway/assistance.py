"""Asking drafters to help a session: never needed, never waited for."""

from __future__ import annotations

import asyncio

import grpc
import structlog

from forerun.errors import (
    FailedPrecondition,
    ForerunError,
    InvalidRequest,
    Overloaded,
    PermissionRefused,
    Unavailable,
)
from forerun.v1 import drafter_pb2, drafter_pb2_grpc
from forerun.wire.status import from_rpc_error
from forerun.wire.telemetry import inject
from gateway.patience import Patience
from gateway.replica import Replica
from gateway.router import Router

# A drafter that said this will say it again: its vocabulary, its allow-list, its build do not fit.
_FOR_GOOD = (FailedPrecondition, InvalidRequest, PermissionRefused)
# The first look again; later ones are up to `drafter_retry_s` apart.
_FIRST_PAUSE_S = 0.02


async def assist(router: Router, request: drafter_pb2.AssistRequest, patience: Patience) -> None:
    """Keep one drafter on the session until the session or the task ends; when one is lost another is asked.

    No error of a drafter leaves here.
    """
    log = structlog.get_logger("gateway.assistance").bind(session_id=request.session_id)
    unfit: set[str] = set()
    pause = min(_FIRST_PAUSE_S, patience.drafter_retry_s)
    while True:
        drafter = router.drafter(
            request.session_id, vocab_fingerprint=request.vocab_fingerprint, exclude=unfit
        )
        if drafter is not None:
            try:
                await _assist(drafter, request, patience)
            except _FOR_GOOD as error:
                _say_unfit(drafter, error)
                unfit.add(drafter.address)
            except Overloaded as error:  # it has no room now, and is asked again
                log.debug("drafter full", drafter=drafter.address, reason=error.reason)
            except ForerunError as error:
                log.info("drafter lost", drafter=drafter.address, reason=error.reason)
                if isinstance(error, Unavailable):
                    router.report_failure(drafter)
            else:
                return
        await asyncio.sleep(pause)
        pause = min(pause * 2, patience.drafter_retry_s)


def _say_unfit(drafter: Replica, error: ForerunError) -> None:
    """Warn of the refusal unless the drafter refused an earlier session for the same reason."""
    if drafter.is_new_refusal(error.reason):
        structlog.get_logger("gateway.assistance").warning(
            "drafter does not fit", drafter=drafter.address, reason=error.reason, error=error.message
        )


async def _assist(drafter: Replica, request: drafter_pb2.AssistRequest, patience: Patience) -> None:
    """Return when the drafter has seen the session's end. Raises ForerunError when it is lost before."""
    with drafter.in_use() as channel:
        call = drafter_pb2_grpc.DrafterServiceStub(channel).Assist(
            request, timeout=patience.decode_s, metadata=inject()
        )
        try:
            async for _ in call:
                pass
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error
        except asyncio.CancelledError:
            # The other side's status CANCELLED looks like our own cancellation; only that has a canceller.
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise Unavailable("the drafter cancelled the call", reason="CANCELLED") from None
        finally:
            call.cancel()
