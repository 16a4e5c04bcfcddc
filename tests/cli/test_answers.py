"""An answer grows from its events without gaps, and is summed up as --json promises."""

import pytest

from forerun.cli.client import Answer
from forerun.cli.demo import Row, faults
from forerun.cli.messages import event_from_proto, request_to_proto
from forerun.cli.summary import summary
from forerun.core.types import Acceptance, Exactness, FinishReason, Mode, ModelInfo, Origin, Sampling
from forerun.errors import InternalFault
from forerun.v1 import gateway_pb2
from gateway.events import Delta, Finished, Opened, Speculation, Timings, Usage
from gateway.request import GenerationRequest
from gateway.servicer import event_to_fields, request_from_proto

MODEL = ModelInfo("m", "r", "ab" * 32, 10, 100, "n", Exactness.BITWISE, (2,))
OPENED = Opened("s-1", Mode.COUPLED, 7, 3, MODEL)
DELTAS = [Delta(0, (4, 5), (Origin.DRAFTED, Origin.BONUS), "ab"), Delta(2, (6,), (Origin.PLAIN,), "c")]
FINISHED = Finished(
    FinishReason.LENGTH,
    Usage(3, 3),
    Speculation(2, 2, 1, 1, 0, 0, 1, (1, 1)),
    Timings(1.0, 2.0, 3.0, 4.0, 5.0, 6.0),
    Exactness.BITWISE,
    "!",
)
EVENTS = [OPENED, *DELTAS, FINISHED]


def answer(*events) -> Answer:
    grown = Answer()
    for event in events:
        grown.take(event)
    return grown


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_survives_the_wire(event):
    assert event_from_proto(gateway_pb2.GenerateResponse(**event_to_fields(event))) == event
    assert event_from_proto(gateway_pb2.ResumeResponse(**event_to_fields(event))) == event


@pytest.mark.parametrize(
    "request_",
    [
        GenerationRequest(prompt="hello"),
        GenerationRequest(
            messages=(("system", "be brief"), ("user", "hello")), stop=("a", "b"), no_draft=True
        ),
        GenerationRequest(
            token_ids=(1, 2),
            sampling=Sampling(0.5, 4, 0.9, 0.1),
            seed=0,
            acceptance=Acceptance.COUPLED,
            max_tokens=5,
            request_id="r",
            session_id="s",
            model="m",
            ignore_end_tokens=True,
        ),
    ],
)
def test_a_request_survives_the_wire(request_):
    assert request_from_proto(request_to_proto(request_)) == request_


def test_an_answer_is_the_sum_of_its_events():
    whole = answer(*EVENTS)
    assert (whole.token_ids, whole.text) == ([4, 5, 6], "abc!")
    assert whole.complete() == (OPENED, FINISHED)


@pytest.mark.parametrize("offset", [1, 4])
def test_a_gap_or_a_repetition_is_a_fault(offset):
    grown = answer(OPENED, DELTAS[0])
    with pytest.raises(InternalFault, match=f"offset {offset}, not 2"):
        grown.take(Delta(offset, (1,), (Origin.PLAIN,), "x"))
    assert grown.token_ids == [4, 5]


def test_an_answer_without_its_end_is_not_complete():
    with pytest.raises(InternalFault, match="before the answer was complete"):
        answer(OPENED, *DELTAS).complete()


def test_json_sums_an_answer_up():
    assert summary(answer(*EVENTS)) == {
        "text": "abc!",
        "token_ids": [4, 5, 6],
        "finish_reason": "length",
        "session_id": "s-1",
        "mode": "coupled",
        "seed": 7,
        "exact": "bitwise",
        "speculation": {
            "passes": 2,
            "tokens_per_pass": 1.5,
            "acceptance_rate": 1.0,
            "draft_efficiency": 0.5,
            "num_drafted": 2,
            "num_accepted": 1,
        },
        "timings_ms": {
            "first_token": 1.0,
            "total": 2.0,
            "pass": 3.0,
            "wait": 4.0,
            "queue": 5.0,
            "commit": 6.0,
        },
    }


def test_rates_without_a_base_are_null():
    none = Finished(FinishReason.STOP, Usage(3, 0), Speculation(), Timings(), Exactness.NUMERIC, "")
    said = summary(answer(OPENED, none))["speculation"]
    assert (said["tokens_per_pass"], said["acceptance_rate"], said["draft_efficiency"]) == (None, None, None)


def test_a_demo_row_fails_when_it_differs_or_nothing_was_accepted():
    good = answer(*EVENTS)
    other = answer(OPENED, Delta(0, (4,), (Origin.PLAIN,), "a"), FINISHED)
    plain = Finished(
        FinishReason.LENGTH, Usage(3, 3), Speculation(passes=3), Timings(), Exactness.BITWISE, "!"
    )
    assert faults(Row("code", good, good)) == []
    assert faults(Row("code", good, other)) == ["code: the text with drafting differs from the plain text"]
    assert faults(Row("code", good, answer(OPENED, *DELTAS, plain))) == [
        "code: no drafted token was accepted"
    ]
