from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import tokenizers
import transformers
import trustme
from tokenizers import decoders, models, pre_tokenizers, trainers

from forerun.core.types import TokenizerFiles
from forerun.engine.convert import ensure_smollm2
from forerun.engine.tokenizer_files import read_tokenizer
from forerun.wire.tls import Tls
from gateway.router import Router
from gateway.text import Tokenizer
from tests.gateway.replicas import Fleet

SPECIALS = ["<|end|>", "<|start|>"]
CHATML = (
    "{% for m in messages %}"
    "{{ '<|start|>' + m['role'] + '\n' + m['content'] + '<|end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant\n' }}{% endif %}"
)
CORPUS = [
    "The bell will soon ring again, waking the city. " * 3,
    "naïve café, größer, 東京は夜の七時, 😀😃🏳️‍🌈 aa aaa aaaa \n\n\n User: ",
]


@pytest.fixture(scope="session")
def small_files() -> TokenizerFiles:
    """A byte-level BPE of 400 tokens, multi-byte characters and emoji split over several of them."""
    raw = tokenizers.Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator(CORPUS, trainer)
    return TokenizerFiles(
        tokenizer_json=raw.to_str().encode(),
        chat_template=CHATML,
        special_tokens={"bos_token": "<|start|>", "eos_token": "<|end|>"},
        vocab_fingerprint="ab" * 32,
    )


@pytest.fixture(scope="session")
def small(small_files: TokenizerFiles) -> Tokenizer:
    return Tokenizer(small_files)


@pytest.fixture(scope="session")
def small_reference(small_files: TokenizerFiles) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_str(small_files.tokenizer_json.decode())


@pytest.fixture(scope="session")
def smollm2() -> tuple[Tokenizer, transformers.PreTrainedTokenizerBase]:
    """SmolLM2's tokenizer as a verifier hands it out, and as transformers loads it."""
    folder = ensure_smollm2()
    return Tokenizer(read_tokenizer(folder)), transformers.AutoTokenizer.from_pretrained(str(folder))


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    fleet = Fleet()
    yield fleet
    await fleet.close()


@pytest.fixture
async def routing() -> AsyncIterator[Callable[..., object]]:
    """Starts routers; all are closed at the end."""
    async with AsyncExitStack() as stack:

        @asynccontextmanager
        async def running(router: Router) -> AsyncIterator[Router]:
            await router.start()
            try:
                yield router
            finally:
                await router.close()

        async def start(verifiers: str, drafters: str = "", **options: object) -> Router:
            options.setdefault("tls", Tls())
            return await stack.enter_async_context(running(Router(verifiers, drafters, **options)))

        yield start


@pytest.fixture
def make_authority(tmp_path: Path) -> Callable[[], Callable[[str], Tls]]:
    """Each call is an authority, which issues certificates by the name they carry."""

    def make() -> Callable[[str], Tls]:
        authority = trustme.CA()
        folder = tmp_path / f"authority-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        authority.cert_pem.write_to_path(folder / "ca.pem")

        def issue(name: str) -> Tls:
            certificate = authority.issue_cert(name)
            certificate.private_key_pem.write_to_path(folder / f"{name}.key")
            certificate.cert_chain_pems[0].write_to_path(folder / f"{name}.pem")
            return Tls(folder / f"{name}.pem", folder / f"{name}.key", folder / "ca.pem")

        return issue

    return make


@pytest.fixture
def issue(make_authority: Callable[[], Callable[[str], Tls]]) -> Callable[[str], Tls]:
    return make_authority()
