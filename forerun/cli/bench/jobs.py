"""What is asked: prompts, made new where they are asked again, with answers of a set length."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from forerun.cli.prompts import Prompt
from forerun.errors import InvalidRequest

Messages = tuple[tuple[str, str], ...]

# An answer that ends at once says nothing about speed: it goes on past its end up to this length.
LEAST_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Job:
    """One question and the exact length of its answer; end tokens do not end it.

    `number` makes the text new: a verifier that answered another number has no KV of it beyond the template's.
    """

    prompt: Prompt
    num_tokens: int
    number: int = 0
    temperature: float = 0.0
    seed: int | None = None

    @property
    def messages(self) -> Messages:
        """The conversation to send."""
        if self.number == 0:
            return self.prompt.messages
        return (("user", f"({self.number}) {self.prompt.text}"),)


def chosen(prompts: Sequence[Prompt], categories: Sequence[str], limit: int | None) -> list[Prompt]:
    """Return the prompts of these categories (none: of all), categories taking turns, at most `limit`.

    Raises InvalidRequest for a category that no prompt has.
    """
    by_category: dict[str, list[Prompt]] = defaultdict(list)
    for prompt in prompts:
        by_category[prompt.category].append(prompt)
    if unknown := [one for one in categories if one not in by_category]:
        raise InvalidRequest(
            f"no prompt has category {', '.join(unknown)}; there are {', '.join(by_category)}",
            field="category",
        )
    kept = [own for name, own in by_category.items() if not categories or name in categories]
    turns = [one for turn in zip_longest(*kept) for one in turn if one is not None]
    return turns[:limit]


def answer_length(natural: int, most: int) -> int:
    """Return how many tokens an answer is given that ends by itself after `natural`."""
    return max(natural, min(LEAST_TOKENS, most))


def endless(prompts: Sequence[Prompt], lengths: Mapping[Prompt, int], number: int) -> Iterator[Job]:
    """Yield jobs over all prompts, again and again, no two of the same text; the first has this number."""
    while True:
        for prompt in prompts:
            yield Job(prompt, lengths[prompt], number)
        number += 1
