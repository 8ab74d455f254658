"""Everything that makes a command fail, as one tree.

    CommandFailed                exit  code
    ├── WrongUsage               1     wrong_usage
    ├── ConfigInvalid            1     invalid_configuration
    ├── NoApiKey                 1     no_api_key
    ├── NothingAnswers           1     nothing_answers
    ├── ConnectionFailed         1     connection_failed
    ├── TimedOut                 1     timeout
    ├── ServerRefused            1     the server's own, else refused
    │   └── AnswerFailed         1     (an error inside an answer that had begun)
    ├── AnswerCut                1     answer_cut
    ├── AnswerMalformed          1     answer_malformed
    ├── GatewaysFailed           1     gateways_failed
    ├── PortUnavailable          1     port_unavailable
    └── ServerFailed             1     server_failed

`hint` says what to do about it. A command line that does not parse is the framework's
own error and exits with 2; Ctrl-C exits with 130.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

KIND = "cli_error"
"""The `type` of errors that arise on this side of the wire."""


class CommandFailed(Exception):
    """A command could not do what it was asked; its message is for the person who asked."""

    exit_code: ClassVar[int] = 1
    code: ClassVar[str] = "failed"

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def as_json(self) -> dict[str, object]:
        """The value of `error`, in the shape of the API's own error object."""
        error: dict[str, object] = {
            "message": self.message,
            "type": KIND,
            "param": None,
            "code": self.code,
        }
        if self.hint:
            error["hint"] = self.hint
        return error


class WrongUsage(CommandFailed):
    """Options that do not go together, or a value that is none of the choices."""

    code = "wrong_usage"


class ConfigInvalid(CommandFailed):
    """The config file or an environment variable cannot be used as it stands."""

    code = "invalid_configuration"


class NoApiKey(CommandFailed):
    """The server is on another machine and no key is set."""

    code = "no_api_key"


class NothingAnswers(CommandFailed):
    """Nobody listens at the inference URL."""

    code = "nothing_answers"


class ConnectionFailed(CommandFailed):
    """The connection broke before the answer was whole."""

    code = "connection_failed"


class TimedOut(CommandFailed):
    """The server took longer than this client waits."""

    code = "timeout"


class ServerRefused(CommandFailed):
    """The server answered with an error; `body` is its error object as it came.

    `status` is the HTTP status, None for an error inside a stream; `retry_after` is the
    `Retry-After` header in seconds.
    """

    code = "refused"

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        server_code: str | None = None,
        body: Mapping[str, object] | None = None,
        retry_after: float | None = None,
        request_id: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.server_code = server_code
        self.body = dict(body or {})
        self.retry_after = retry_after
        self.request_id = request_id

    def as_json(self) -> dict[str, object]:
        error = {**super().as_json(), "type": None, "code": self.server_code or self.code}
        error |= self.body
        error["message"] = self.message
        extra = {
            "status": self.status,
            "retry_after": self.retry_after,
            "request_id": self.request_id,
        }
        return error | {name: value for name, value in extra.items() if value is not None}


class AnswerFailed(ServerRefused):
    """The server broke off an answer that had begun, and said why."""

    code = "answer_failed"


class AnswerCut(CommandFailed):
    """The answer ended without a finish reason, so part of it may be missing."""

    code = "answer_cut"


class AnswerMalformed(CommandFailed):
    """What came is not what the API promises."""

    code = "answer_malformed"


class GatewaysFailed(CommandFailed):
    """Of several gateways that were told the same, some have not done it."""

    code = "gateways_failed"


class PortUnavailable(CommandFailed):
    """`serve` cannot listen where it was told to."""

    code = "port_unavailable"


class ServerFailed(CommandFailed):
    """A server did not come up, or the one that `chat --serve` started went away."""

    code = "server_failed"
