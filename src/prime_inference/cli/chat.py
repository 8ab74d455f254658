"""`prime inference chat`: ask a model one thing, or talk with it."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from prime_inference.cli.failures import WrongUsage
from prime_inference.cli.options import Plain, TextOrJson, json_help
from prime_inference.cli.terminal import Terminal

if TYPE_CHECKING:
    from prime_inference.cli.client import InferenceClient
    from prime_inference.cli.conversation import Conversation
    from prime_inference.cli.talk import Talk

EPILOG = json_help(
    "The server's chat completion as it came: {id, model, choices, usage?, ...}; the text is"
    " .choices[0].message.content",
    "With --stats, one line on stderr: {stats: {prompt_tokens, cached_tokens,"
    " completion_tokens, reasoning_tokens, finish_reason, time_to_first_token, total_time,"
    " tokens_per_second}}, times in seconds, null for what is not known.",
)


def chat(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Model id (see `prime inference models`).")
    ],
    message: Annotated[
        str | None,
        typer.Argument(
            metavar="MESSAGE",
            help="What to say. Without it: standard input, or on a terminal a conversation.",
        ),
    ] = None,
    system: Annotated[str | None, typer.Option("--system", "-s", help="System prompt.")] = None,
    stream: Annotated[
        bool,
        typer.Option("--stream", help="Print the answer as it comes, reasoning on stderr."),
    ] = False,
    temperature: Annotated[
        float | None, typer.Option("--temperature", "-t", help="Sampling temperature.")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", help="Most tokens to generate.")
    ] = None,
    reasoning_effort: Annotated[
        str | None,
        typer.Option(
            "--reasoning-effort",
            help="Reasoning effort, such as low, medium, high; what is supported depends on"
            " the model.",
        ),
    ] = None,
    service_tier: Annotated[
        str | None,
        typer.Option(
            "--service-tier",
            metavar="auto|default|flex",
            help="flex: cheaper, and after everybody else's requests.",
        ),
    ] = None,
    stats: Annotated[
        bool, typer.Option("--stats", help="Then print tokens and speed on stderr.")
    ] = False,
    serve: Annotated[
        bool,
        typer.Option(
            "--serve",
            help="Run a private server on this machine while this command runs. MODEL may"
            " then be a GGUF file.",
        ),
    ] = False,
    output: TextOrJson = "text",
    plain: Plain = False,
) -> None:
    """Ask a model one thing, or talk with it.

    The server is PRIME_INFERENCE_URL, else inference_url in
    ~/.prime/config.json, else the one that `prime inference serve` runs
    on this machine (http://127.0.0.1:8000/api/v1).

    Examples:
      prime inference chat author/model "say hi"
      prime inference chat author/model "say hi" --stream --stats
      prime inference chat author/model "say hi" --service-tier flex
      echo "explain RL in one line" | prime inference chat author/model
      prime inference chat author/model
      prime inference chat --serve ./model.gguf "say hi"
    """
    terminal = Terminal(plain=plain)
    as_json = output == "json"
    if stream and as_json:
        raise WrongUsage("--stream is not supported with --output json.")
    if temperature is not None and not math.isfinite(temperature):
        raise WrongUsage("--temperature must be a finite number.")
    if message is None and not (terminal.interactive and not as_json):
        message = _piped_message()

    from prime_inference.cli.conversation import Conversation
    from prime_inference.cli.talk import Sampling, Talk

    sampling = Sampling(temperature, max_tokens, reasoning_effort, service_tier)
    conversation = Conversation(_utf8(system, "system prompt"))
    with _connected(model, serve=serve) as (client, model_id):
        talk = Talk(client, terminal, model_id, sampling, stats, as_json)
        if message is None:
            from prime_inference.cli.interactive import converse

            converse(talk, conversation)
        else:
            _ask_once(talk, conversation, _utf8(message, "message"), stream=stream)


def _ask_once(talk: Talk, conversation: Conversation, message: str | None, *, stream: bool) -> None:
    from prime_inference.cli.answer import Answer

    conversation.ask(message or "")
    if stream:
        talk.answer_streamed(conversation, Answer())
    else:
        talk.answer_whole(conversation)


@contextlib.contextmanager
def _connected(model: str, *, serve: bool) -> Iterator[tuple[InferenceClient, str]]:
    """A client of the server to ask, and the model's id there."""
    from prime_inference.cli.client import InferenceClient, require_key
    from prime_inference.cli.settings import current_settings

    if not serve:
        settings = current_settings()
        require_key(settings)
        with InferenceClient(settings) as client:
            yield client, model
        return
    from prime_inference.cli.private_server import private_server

    with private_server(model) as (settings, model_id), InferenceClient(settings) as client:
        yield client, model_id


def _piped_message() -> str:
    """The message on standard input. Raises WrongUsage when there is none."""
    if sys.stdin.isatty():
        raise WrongUsage("No message: pass it as an argument or on standard input.")
    try:
        message = sys.stdin.buffer.read().decode().strip()
    except UnicodeDecodeError as error:
        raise WrongUsage("Standard input is not UTF-8 text.") from error
    if not message:
        raise WrongUsage("The message on standard input is empty.")
    return message


def _utf8(text: str | None, name: str) -> str | None:
    """The text, if JSON can carry it: an argument of bytes that are no UTF-8 cannot go there."""
    try:
        (text or "").encode()
    except UnicodeEncodeError as error:
        raise WrongUsage(f"The {name} is not UTF-8 text.") from error
    return text
