"""The set-ups that are compared, by name: what runs, and on what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forerun.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class SetUp:
    """One way of serving. `source`: that of a drafter process, "" for none."""

    name: str
    label: str
    source: str = ""
    lookup: bool = False  # the verifier's own
    no_draft: bool = False  # requests ask for no drafts
    relayed: bool = False  # a network lies between drafter and verifier

    @property
    def drafts(self) -> bool:
        """Whether anything is drafted for it."""
        return not self.no_draft and (self.lookup or bool(self.source))


PLAIN = SetUp("plain", "Forerun, plain", no_draft=True)
BESIDE = SetUp("plain-beside", "plain, idle drafter beside", source="ngram", no_draft=True)
LOOKUP = SetUp("lookup", "Forerun, look-up", lookup=True)
COLOCATED = SetUp("colocated", "drafter on the same cores", source="ngram")
REMOTE = SetUp("remote", "Forerun, remote drafter", source="ngram", relayed=True)
SYNCHRONOUS = SetUp("synchronous", "remote drafter in turns", source="sync:ngram", relayed=True)

# Other ways of generating, in the process of the bench.
BASELINES = {
    "transformers": "transformers",
    "transformers-lookup": "transformers, prompt look-up",
    "llama.cpp": "llama.cpp",
    "engine": "bare engine",
}


def model_set_ups(drafter_model: str | None) -> tuple[SetUp, ...]:
    """Return the set-ups with a model drafter, and plain in its layout; none without a model."""
    if drafter_model is None:
        return ()
    source = f"model:{drafter_model}"
    return (
        SetUp("model", "Forerun, model drafter", source=source, lookup=True),
        SetUp("model-beside", "plain, idle model beside", source=source, no_draft=True),
    )


def of_one_machine(drafter_model: str | None) -> tuple[SetUp, ...]:
    """Return every set-up that `single` and `load` compare."""
    return (PLAIN, BESIDE, LOOKUP, *model_set_ups(drafter_model), COLOCATED, REMOTE, SYNCHRONOUS)


def over_a_network(drafter_model: str | None) -> tuple[SetUp, ...]:
    """Return the set-ups of `latency`; with a model, it is what drafts."""
    source = f"model:{drafter_model}" if drafter_model else "ngram"
    return (
        PLAIN,
        SetUp(COLOCATED.name, COLOCATED.label, source=source),
        SetUp(REMOTE.name, REMOTE.label, source=source, relayed=True),
        SetUp(SYNCHRONOUS.name, SYNCHRONOUS.label, source=f"sync:{source}", relayed=True),
    )


def check_names(names: Sequence[str], set_ups: Sequence[SetUp], baselines: Sequence[str] = ()) -> None:
    """Return if every name is one of these. Raises InvalidRequest."""
    known = [*(one.name for one in set_ups), *baselines]
    if unknown := [name for name in names if name not in known]:
        raise InvalidRequest(
            f"no set-up {', '.join(unknown)} here; there are {', '.join(known)}", field="setup"
        )
