"""Fields that are not served: refused by name, unless their value asks for what happens anyway.

A field this door does not know at all is refused too: what it would change cannot be known.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from forerun.errors import InvalidRequest

# Fields that change nothing in the answer.
IGNORED = frozenset(
    {
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "parallel_tool_calls",
        "priority",
    }
)

# Fields OpenAI or vLLM know and we do not serve, with the values that mean "without it". null always does.
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "add_generation_prompt": (True,),
    "add_special_tokens": (),
    "allowed_token_ids": ([],),
    "audio": (),
    "bad_words": ([],),
    "best_of": (1,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "documents": ([],),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "guided_choice": ([],),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "min_tokens": (0,),
    "modalities": (["text"],),
    "n": (1,),
    "prediction": (),
    "presence_penalty": (0,),
    "prompt_logprobs": (),
    "reasoning_effort": (),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "skip_special_tokens": (True,),
    "stop_token_ids": ([],),
    "structured_outputs": (),
    "suffix": ("",),
    "tool_call_id": (),
    "tool_calls": ([],),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    "verbosity": (),
    "web_search_options": (),
}


def refuse_unsupported(fields: Mapping[str, Any], *, inside: str = "") -> None:
    """Raise InvalidRequest for the first field that asks for something else than what is served.

    `inside`: where the fields are, such as "messages[0]", for its name in the error.
    """
    for name, value in fields.items():
        if value is None or name in IGNORED or _means_nothing(value, UNSUPPORTED.get(name, ())):
            continue
        where = f"{inside}.{name}" if inside else name
        if name in UNSUPPORTED:
            raise InvalidRequest(
                f"{where} is not supported{_but_as(UNSUPPORTED[name])}",
                reason="UNSUPPORTED_FIELD",
                field=where,
            )
        raise InvalidRequest(f"{where} is not a known field", reason="UNKNOWN_FIELD", field=where)


def _but_as(harmless: tuple[Any, ...]) -> str:
    return f", except as {' or '.join(json.dumps(value) for value in harmless)}" if harmless else ""


def _means_nothing(value: Any, harmless: tuple[Any, ...]) -> bool:
    # 1 and true are equal in Python and are not the same request.
    return any(value == h and isinstance(value, bool) == isinstance(h, bool) for h in harmless)
