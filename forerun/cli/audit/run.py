"""The run of an audit: plain answers first, then every drafter's, over real services."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from forerun.cli.audit import reference as references
from forerun.cli.audit.compare import Counts, Difference, Outcome, first_difference
from forerun.cli.audit.drafters import NO_DRAFTER, OWN_LOOKUP, Material, check_drafter, is_model, source_of
from forerun.cli.audit.reference import Conditions, Reference
from forerun.cli.client import Answer, Client
from forerun.cli.cores import share_out
from forerun.cli.parallel import in_parallel
from forerun.cli.progress import prepare, start
from forerun.cli.prompts import Prompt
from forerun.cli.stack import LocalService, Stack
from forerun.cli.verifier_client import describe
from forerun.core.types import Exactness, Sampling
from forerun.engine.cores import usable_cores
from gateway.request import GenerationRequest


@dataclass(frozen=True, slots=True)
class AuditSettings:
    """What is audited."""

    prompts: tuple[Prompt, ...]
    drafters: tuple[str, ...]
    sessions: int
    max_tokens: int
    temperature: float
    seed: int | None
    model: str
    dtype: str
    window: int | None
    pool_mib: int | None
    lose_verifier: bool
    reference: Path | None


@dataclass(frozen=True, slots=True)
class Findings:
    """What an audit found. `texts`: the differences' tokens as text, by token id."""

    outcomes: tuple[Outcome, ...]
    texts: dict[int, str]


async def run_audit(settings: AuditSettings, console: Console) -> Findings:
    """Return what comparing every drafter's answers with the plain ones found. Raises ForerunError."""
    for drafter in settings.drafters:
        await check_drafter(drafter)
    await prepare(settings.model, (), console)
    models = ["model:"] if any(is_model(one) for one in settings.drafters) else []
    shares = share_out(usable_cores(), verifiers=1, sources=models)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    async with Stack(model=settings.model, dtype=settings.dtype, shares=shares) as stack:
        store, verifier = stack.add_store(fsync="everysec"), _add_verifier(stack, settings)
        await start(stack, [store, verifier], console)
        model, tokenizer = await describe(verifier.address)
        conditions = Conditions(model.numerics, settings.temperature, settings.seed, settings.max_tokens)
        with Progress(*columns, console=console) as progress:
            audit = Audit(settings, stack, progress)
            plain = await audit.plain_answers(conditions)
            material = Material(stack, settings.model, tokenizer, model.vocab_size, plain)
            outcomes = [await audit.outcome(drafter, material) for drafter in settings.drafters]
    differences = [one for outcome in outcomes for one in outcome.differences]
    return Findings(tuple(outcomes), _texts(tokenizer.tokenizer_json, differences))


class Audit:
    """One store and one verifier; a gateway of its own for the plain answers and for each drafter."""

    def __init__(self, settings: AuditSettings, stack: Stack, progress: Progress) -> None:
        self._settings = settings
        self._stack = stack
        self._progress = progress
        self._looks_up = False  # whether the verifier does

    async def plain_answers(self, conditions: Conditions) -> Reference:
        """Return the plain answer to every prompt: out of the reference file, or computed and kept there."""
        settings = self._settings
        known = Reference(conditions)
        if settings.reference:
            known = references.load(settings.reference, conditions)
        missing = [one for one in settings.prompts if not known.knows(one)]
        if not missing:
            return known
        line = self._progress.add_task("plain", total=len(missing))

        async def one(client: Client, prompt: Prompt) -> None:
            answer = await client.answer(request_for(settings, prompt, no_draft=True))
            opened, _ = answer.complete()
            session = await client.session(opened.session_id)
            known.keep(prompt, list(session.token_ids[: session.prompt_length]), answer.token_ids)
            self._progress.advance(line)

        await self._ask(missing, [], one)
        if settings.reference:
            references.save(settings.reference, known)
        return known

    async def outcome(self, drafter: str, material: Material) -> Outcome:
        """Return how this drafter's answers compare with the plain ones."""
        settings, progress = self._settings, self._progress
        line = progress.add_task(drafter, total=len(settings.prompts))
        counts, inexact = Counts(), 0
        differences: list[Difference] = []

        async def one(client: Client, prompt: Prompt) -> None:
            nonlocal counts, inexact
            answer = await client.answer(request_for(settings, prompt))
            counts += counts_of(answer)
            inexact += answer.complete()[1].exact is not Exactness.BITWISE
            found = first_difference(prompt.prompt_id, material.plain.answer(prompt), answer.token_ids)
            if found:
                differences.append(found)
            progress.update(line, advance=1, description=f"{drafter}: {len(differences)} differ")

        if self._looks_up != (drafter == OWN_LOOKUP):
            await self._replace_verifier()
        unsourced = drafter in {NO_DRAFTER, OWN_LOOKUP}
        sources = [] if unsourced else [await source_of(drafter, material, settings.prompts)]
        await self._ask(settings.prompts, sources, one, lose_verifier=settings.lose_verifier)
        return Outcome(drafter, len(settings.prompts), counts, tuple(differences), inexact)

    async def _ask(
        self,
        prompts: Sequence[Prompt],
        sources: Sequence[str],
        one: Callable[[Client, Prompt], Awaitable[None]],
        *,
        lose_verifier: bool = False,
    ) -> None:
        stack = self._stack
        drafters = [stack.add_drafter(source) for source in sources]
        await stack.start(drafters)
        (store,), verifiers = stack.by_role("store"), stack.by_role("verifier")
        spare = [_add_verifier(stack, self._settings, lookup=self._looks_up)] if lose_verifier else []
        await stack.start(spare)
        gateway = stack.add_gateway(store.address, [*verifiers, *spare], drafters)
        await stack.start([gateway])
        answered = 0

        async def counted(prompt: Prompt) -> None:
            nonlocal answered
            await one(client, prompt)
            answered += 1
            if lose_verifier and answered == (len(prompts) + 1) // 2:
                # Everything it decodes now goes on at the other one.
                await stack.remove(verifiers, grace_s=0)

        async with Client(gateway.address) as client:
            await in_parallel(prompts, self._settings.sessions, counted)
        await stack.remove([gateway, *drafters])

    async def _replace_verifier(self) -> None:
        """The one verifier drafts by look-up if the last one did not, and the other way round."""
        self._looks_up = not self._looks_up
        await self._stack.remove(self._stack.by_role("verifier"))
        await self._stack.start([_add_verifier(self._stack, self._settings, lookup=self._looks_up)])


def _add_verifier(stack: Stack, settings: AuditSettings, *, lookup: bool = False) -> LocalService:
    flags = ["--name", "target"]  # the same for one that takes another's place
    if settings.window is not None:
        flags += ["--window", str(settings.window)]
    if settings.pool_mib is not None:
        flags += ["--kv-pool-mib", str(settings.pool_mib)]
    return stack.add_verifier(*flags, lookup=lookup)


def request_for(settings: AuditSettings, prompt: Prompt, *, no_draft: bool = False) -> GenerationRequest:
    """Return the request of one prompt: its first turn, through the chat template."""
    return GenerationRequest(
        messages=prompt.messages,
        sampling=Sampling(temperature=settings.temperature),
        seed=settings.seed,
        max_tokens=settings.max_tokens,
        no_draft=no_draft,
    )


def counts_of(answer: Answer) -> Counts:
    """Return how the tokens of one complete answer were settled."""
    _, finished = answer.complete()
    speculation = finished.speculation
    return Counts(
        tokens=len(answer.token_ids),
        passes=speculation.passes,
        tested=speculation.num_tested,
        accepted=speculation.num_accepted,
        corrected=speculation.num_corrections,
        bonus=speculation.num_bonus,
        salvaged=speculation.num_salvaged,
    )


def _texts(tokenizer_json: bytes, differences: Sequence[Difference]) -> dict[int, str]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_buffer(tokenizer_json)
    ids = {
        token for one in differences for token in (*one.before, one.plain, one.drafted) if token is not None
    }
    return {token: tokenizer.decode([token], skip_special_tokens=False) for token in ids}
