"""How an answer that has begun is taken up by another engine (docs/reliability.md, "Continuation").

Pure: what a request must ask for so that its answer could be continued, why an answer
cannot be, and the requests by which the next engine goes on. `stream_attempts` sends them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from msgspec import Struct, structs

from prime_inference.domain.models import Deployment, Model
from prime_inference.gateway.operations import Operation
from prime_inference.wire.openai.chat_request import AssistantMessage
from prime_inference.wire.openai.said import IdSource, Said

ID_BODY_BYTES = 64 * 1024
"""vLLM names the prompt's tokens with the answer's: 7 bytes each, kept as long as the answer
lasts. A body of this size is at most some 16,000 tokens; longer prompts are continued by text."""

SEED_RANGE = 2**63  # a request's seed is below it

TEXT_PARAMETERS = frozenset({
    "frequency_penalty", "logit_bias", "min_p", "presence_penalty", "repetition_penalty", "seed",
    "stop", "temperature", "top_k", "top_p",
})  # fmt: skip
"""Parameters that mean the same on `/completions` as on `/chat/completions`."""


class Resumption(Struct, frozen=True):
    """How one kind of engine takes an answer up. Nothing that is not known to work is tried."""

    id_source: IdSource | None = None  # where its streams name their tokens
    asks_chat: bytes = b""  # what a request says so that they do: members of the body
    asks_text: bytes = b""
    tokenizes: bool = False  # it has llama.cpp's /apply-template and /tokenize
    takes_prefill: dict[str, Any] | None = None  # what makes a chat go on with a last message
    default_limit: int | None = None  # tokens of a completion without `max_tokens`


BY_PREFILL = {"continue_final_message": True, "add_generation_prompt": False}

RESUMPTIONS: dict[str, Resumption] = {
    "llama.cpp": Resumption(
        # the ids stand in the logprobs; those after sampling cost nothing to compute
        id_source="logprobs",
        asks_chat=b',"logprobs":true,"top_logprobs":1,"post_sampling_probs":true}',
        asks_text=b',"logprobs":1,"post_sampling_probs":true}',
        tokenizes=True,
    ),
    "vllm": Resumption(
        id_source="token_ids",
        asks_chat=b',"return_token_ids":true}',
        asks_text=b',"return_token_ids":true}',
        takes_prefill=BY_PREFILL,
        default_limit=16,
    ),
    # refuses `return_token_ids`, and names a prompt's tokens in comments only
    "dynamo": Resumption(takes_prefill=BY_PREFILL),
    "openai": Resumption(default_limit=16),  # completions by text; a chat begins a new answer
}
NO_RESUMPTION = Resumption()
UNKNOWN_REVISION = "unknown"  # of an upstream that nobody has described


class Piece(NamedTuple):
    """The request by which an engine goes on; `path` is under the deployment's base URL."""

    path: str
    body: bytes
    by_ids: bool
    again: str = ""  # the end of what was said, if it is not in the request


def resumption_of(deployment: Deployment) -> Resumption:
    return RESUMPTIONS.get(deployment.engine, NO_RESUMPTION)


def begin(operation: Operation, deployment: Deployment) -> tuple[bytes, Said]:
    """The first request of an answer that may have to be continued, and its record."""
    how = resumption_of(deployment)
    body = operation.body(deployment)
    if how.id_source is None or operation.parameters.get("stop"):
        return body, Said(None)  # with stop strings text is held back: ids tell more than was sent
    if how.id_source == "token_ids":
        if len(body) > ID_BODY_BYTES:
            return body, Said(None)
        return body[:-1] + how.asks_chat, Said("token_ids")
    withheld = withholds(operation, how)
    if withheld:  # else the client's own bring the ids
        body = body[:-1] + (how.asks_chat if operation.shape == "chat" else how.asks_text)
    return body, Said("logprobs", withheld=withheld)


def withholds(operation: Operation, how: Resumption) -> bool:
    """Whether logprobs that come are ours, for the ids in them, and not for the client."""
    return how.id_source == "logprobs" and "logprobs" not in operation.parameters


def may_resume(operation: Operation) -> bool:
    """Whether it pays to keep a record: see `obstacle` for what only the answer tells."""
    return operation.choices == 1 and _constraint(operation) is None


def obstacle(operation: Operation, said: Said | None) -> str | None:
    """Why no engine could go on with this answer; None if one could."""
    if operation.choices != 1:
        return "several_choices"
    if constraint := _constraint(operation):
        return constraint
    if said is None:
        return "no_other_deployment"
    if said.others:
        return "tool_call"
    if said.reasoned and not said.text:
        return "reasoning"
    return None


def same_revision(one: str, other: str) -> bool:
    """Whether both are the same weights, tokenizer and chat template, as far as is known."""
    return one == other and one not in ("", UNKNOWN_REVISION)


def tokens_left(operation: Operation, deployment: Deployment, said: Said) -> int | None:
    """Tokens that the answer may still have; None: as many as the context holds."""
    limit = operation.token_limit
    if limit is None and operation.shape == "text":
        limit = resumption_of(deployment).default_limit
    return None if limit is None else limit - said.tokens


def pieces(
    operation: Operation, model: Model, deployment: Deployment, said: Said, ids: Sequence[int]
) -> Iterator[Piece]:
    """Requests by which this deployment can go on, best first.

    `ids` are the tokens of prompt and answer; empty if they are not known.
    """
    left = tokens_left(operation, deployment, said)
    parameters = _parameters(operation, said)
    if ids and _fits_completions(operation, deployment):
        room = model.context_tokens - len(ids)  # `/completions` has a default of its own
        more = structs.replace(
            operation,
            route="completions",
            shape="text",
            token_limit=room if left is None else left,
            parameters=_for_completions(parameters),
            content={"prompt": ids},
        )
        yield Piece("/completions", _asking(more, deployment), by_ids=True)
    if said.reasoned:  # templates leave out what an earlier turn thought
        return
    more = structs.replace(operation, token_limit=left, parameters=parameters)
    prefill = resumption_of(deployment).takes_prefill
    if operation.shape == "text":
        prompt = operation.content["prompt"]
        if isinstance(prompt, str) and "logprobs" not in parameters:  # their offsets begin anew
            more = structs.replace(more, content={"prompt": prompt + said.text})
            yield Piece("/completions", more.body(deployment), by_ids=False)
    elif prefill is not None:
        messages = operation.content["messages"]
        if not isinstance(messages[-1], AssistantMessage):
            text = said.text.rstrip()  # many templates do so; then the engine must be let know
            if text:  # else from the start: an empty message cannot be left open
                content = {"messages": [*messages, AssistantMessage(content=text)]}
                more = structs.replace(more, content=content, parameters=parameters | prefill)
            again = said.text[len(text) :]
            yield Piece("/chat/completions", more.body(deployment), by_ids=False, again=again)


def ids_of(operation: Operation, said: Said) -> list[int]:
    """The tokens of prompt and answer, as the engines have named them; empty if they have not."""
    prompt: list[int] | None = said.prompt_ids
    if prompt is None and operation.shape == "text":
        given = operation.content["prompt"]
        prompt = given if isinstance(given, list) and isinstance(given[0], int) else None
    return [] if prompt is None or said.ids is None else [*prompt, *said.ids]


def _constraint(operation: Operation) -> str | None:
    """A grammar starts at the beginning of what an engine writes, not in the middle."""
    parameters = operation.parameters
    if "response_format" in parameters:
        return "response_format"
    if parameters.get("tool_choice", "auto") not in ("auto", "none"):
        return "tool_choice"
    return None


def _fits_completions(operation: Operation, deployment: Deployment) -> bool:
    """Whether raw text is what the client is sent: `/completions` finds no tool calls in it."""
    if "completions" not in deployment.routes:
        return False
    parameters = operation.parameters
    if "tools" in parameters and parameters.get("tool_choice") != "none":
        return False
    # vLLM answers in the shape of completions, llama.cpp in that of chats; offsets begin anew
    return "logprobs" not in parameters or deployment.engine == "llama.cpp"


def _parameters(operation: Operation, said: Said) -> dict[str, Any]:
    """The request's parameters; a seed moves on, or the first draws would come again."""
    parameters = dict(operation.parameters)
    if "seed" in parameters:
        parameters["seed"] = (parameters["seed"] + said.tokens) % SEED_RANGE
    return parameters


def _for_completions(parameters: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in parameters.items() if name in TEXT_PARAMETERS}
    if parameters.get("logprobs") is not None:
        kept["logprobs"] = parameters.get("top_logprobs") or 1
    return kept


def _asking(operation: Operation, deployment: Deployment) -> bytes:
    """A request on `/completions` whose answer names its tokens."""
    body = operation.body(deployment)
    asks = resumption_of(deployment).asks_text
    if not asks or "logprobs" in operation.parameters:
        return body
    return body[:-1] + asks
