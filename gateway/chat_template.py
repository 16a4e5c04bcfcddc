"""Chat templates as Hugging Face models carry them, rendered in Jinja's immutable sandbox.

The dialect is that of transformers' `apply_chat_template`: trim_blocks, lstrip_blocks, loop controls, `{%
generation %}` blocks, `raise_exception`, `strftime_now`, and a `tojson` that escapes nothing for HTML.
Templates come with the model the operator chose; a client never supplies one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from forerun.errors import FailedPrecondition, InvalidRequest


class _GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}…{% endgeneration %}` marks an answer for training; here only its body remains."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().astimezone().strftime(form)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


class ChatTemplate:
    """One compiled template with the special tokens it may name ("bos_token", …)."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """Compile `source`. Raises FailedPrecondition when it is not valid Jinja."""
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_GenerationBlock, jinja2.ext.loopcontrols],
        )
        environment.filters["tojson"] = _tojson
        environment.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
        self._special_tokens = dict(special_tokens)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise FailedPrecondition(
                f"the model's chat template does not compile: {error}", reason="CHAT_TEMPLATE_BROKEN"
            ) from error

    def render(self, messages: Sequence[tuple[str, str]], *, add_generation_prompt: bool) -> str:
        """The prompt text of (role, content) messages.

        Raises InvalidRequest when the template refuses them.
        """
        variables: dict[str, Any] = {
            "messages": [{"role": role, "content": content} for role, content in messages],
            "add_generation_prompt": add_generation_prompt,
            "tools": None,
            "documents": None,
        }
        try:
            return self._template.render(self._special_tokens | variables)
        except (jinja2.TemplateError, TypeError, ValueError, LookupError) as error:
            # What a template cannot do with these messages shows as any of these, besides its own
            # raise_exception.
            raise InvalidRequest(
                f"the model's chat template refuses these messages: {error}",
                reason="CHAT_TEMPLATE_REFUSED",
                field="messages",
            ) from error
