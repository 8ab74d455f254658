"""Everything that can go wrong with a request, as one tree.

    ApiError                       status  error_type
    ├── InvalidRequest                400  invalid_request
    │   ├── UnknownParameter          400  invalid_request
    │   ├── UnsupportedParameter      400  invalid_request
    │   ├── ContextLengthExceeded     400  context_length_exceeded
    │   ├── AnswerTooLarge            400  invalid_request
    │   ├── PriceDoubtful             400  invalid_request
    │   └── PreviousResponseNotFound  400  invalid_request
    ├── AuthenticationFailed          401  authentication
    ├── BudgetExceeded                402  payment_required
    ├── PermissionDenied              403  permission_denied
    ├── NotFound                      404  not_found
    │   └── ModelNotFound             404  not_found
    ├── MethodNotAllowed              405  invalid_request
    ├── PayloadTooLarge               413  payload_too_large
    ├── UrlTooLong                    414  invalid_request
    ├── HeadersTooLarge               431  invalid_request
    ├── RateLimited                   429  rate_limit_exceeded
    │   └── ReservationExhausted      429  rate_limit_exceeded
    ├── FlexUnavailable           429  provider_overloaded
    ├── InternalFailure               500  server
    ├── MethodUnknown                 501  invalid_request
    ├── ShuttingDown                  503  provider_unavailable
    └── UpstreamFailure               502  provider_unavailable
        ├── UpstreamRefused           (the upstream's own 4xx; not retried)
        ├── ContextTooSmall           400  context_length_exceeded
        ├── UpstreamUnreachable       502  provider_unavailable
        │   └── NoConnection          502  provider_unavailable
        ├── UpstreamMalformed         502  provider_unavailable
        │   ├── BodyTooLarge          502  provider_unavailable
        │   └── ToolCallBroken        502  provider_unavailable
        ├── UpstreamCut               502  provider_unavailable
        ├── UpstreamTimeout           504  timeout
        ├── UpstreamDown              502  provider_unavailable
        └── CapacityExhausted         503  provider_overloaded
            ├── SlotRecalled          503  provider_overloaded
            └── ModelDrained          503  provider_unavailable

`CannotStart` stands apart: nobody has asked anything yet.

`error_type` is OpenRouter's vocabulary; `kind` is the `type` field of OpenAI's error
object and `code` its `code` field, both always strings. Callers branch on the class,
never on the message. Messages never hold a prompt, an answer, a key or an address of ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from prime_inference.domain.pools import Over


class ApiError(Exception):
    """An error with a place in the public contract.

    `param` names the request field at fault, in JSON path form; `retry_after` is in
    seconds and becomes the `Retry-After` header; `details` is extra machine-readable data,
    `headers` are fields of the answer besides.
    """

    status: ClassVar[int] = 500
    kind: ClassVar[str] = "server_error"
    code: ClassVar[str] = "internal_error"
    error_type: ClassVar[str] = "server"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        retry_after: float | None = None,
        details: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after = retry_after
        self.details = dict(details or {})
        self.headers = dict(headers or {})

    def dealt_with(self) -> None:
        """Let go of the frames that it came through, which hold the request's body, and of what
        caused it: where they hold the error as well, only the garbage collector would end them.
        """
        errors: list[BaseException | None] = [self]
        while errors:
            error = errors.pop()
            if error is not None:
                errors += error.__cause__, error.__context__
                error.__traceback__ = error.__cause__ = error.__context__ = None


class InvalidRequest(ApiError):
    """The request cannot be served as it stands; repeating it changes nothing."""

    status = 400
    kind = "invalid_request_error"
    code = "invalid_value"
    error_type = "invalid_request"


class UnknownParameter(InvalidRequest):
    """A field that this API does not have."""

    code = "unknown_parameter"


class AnswerTooLarge(InvalidRequest):
    """What was asked for has more bytes than a whole answer may have."""

    code = "answer_too_large"


class UnsupportedParameter(InvalidRequest):
    """A field of OpenAI's API that this model or this gateway cannot honour."""

    code = "unsupported_parameter"


class ContextLengthExceeded(InvalidRequest):
    """Prompt and requested answer do not fit the model's context window."""

    code = "context_length_exceeded"
    error_type = "context_length_exceeded"


class PriceDoubtful(InvalidRequest):
    """A price that looks like a mistake; `details` say what of it, and how to confirm it."""

    code = "price_doubtful"


class PreviousResponseNotFound(InvalidRequest):
    """A conversation to go on with, of which a turn is not stored (any more)."""

    code = "previous_response_not_found"


class AuthenticationFailed(ApiError):
    """No API key, or one that is not valid."""

    status = 401
    kind = "authentication_error"
    code = "invalid_api_key"
    error_type = "authentication"


class BudgetExceeded(ApiError):
    """What the request could cost does not fit into a budget."""

    status = 402
    kind = "insufficient_quota"
    code = "budget_exceeded"
    error_type = "payment_required"


class PermissionDenied(ApiError):
    """A valid key that may not do this."""

    status = 403
    kind = "permission_error"
    code = "permission_denied"
    error_type = "permission_denied"


class NotFound(ApiError):
    """No such resource or path."""

    status = 404
    kind = "invalid_request_error"
    code = "not_found"
    error_type = "not_found"


class ModelNotFound(NotFound):
    """A model that the catalogue does not hold; the message names the nearest ones."""

    code = "model_not_found"


class MethodNotAllowed(ApiError):
    """The path exists, with another method; `allowed` are those it takes."""

    status = 405
    kind = "invalid_request_error"
    code = "method_not_allowed"
    error_type = "invalid_request"

    def __init__(self, message: str, *, allowed: Sequence[str]) -> None:
        super().__init__(message)
        self.allowed = tuple(allowed)


class PayloadTooLarge(ApiError):
    """The body is larger than the gateway reads."""

    status = 413
    kind = "invalid_request_error"
    code = "payload_too_large"
    error_type = "payload_too_large"


class UrlTooLong(ApiError):
    """The request target is longer than the gateway reads."""

    status = 414
    kind = "invalid_request_error"
    code = "url_too_long"
    error_type = "invalid_request"


class HeadersTooLarge(ApiError):
    """The header fields are more, or larger, than the gateway reads."""

    status = 431
    kind = "invalid_request_error"
    code = "headers_too_large"
    error_type = "invalid_request"


class MethodUnknown(ApiError):
    """No path takes this method: it is none that the HTTP server knows."""

    status = 501
    kind = "invalid_request_error"
    code = "method_unknown"
    error_type = "invalid_request"


class RateLimited(ApiError):
    """A limit of the caller's own is reached."""

    status = 429
    kind = "rate_limit_error"
    code = "rate_limit_exceeded"
    error_type = "rate_limit_exceeded"


class ReservationExhausted(RateLimited):
    """The team's `reservations` have no slot free or no tokens left, and it may not use others.

    `over` says which of the two: slots, or tokens_per_second.
    """

    code = "reservation_exhausted"

    def __init__(
        self,
        message: str,
        *,
        reservations: Sequence[str],
        over: Over,
        retry_after: float,
        details: Mapping[str, object],
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(
            message,
            retry_after=retry_after,
            details={"reservations": list(reservations), "over": over, **details},
            headers={"x-prime-over": over, **(headers or {})},
        )
        self.reservations = tuple(reservations)
        self.over = over


class FlexUnavailable(ApiError):
    """No room for a request that asked to be served after everybody else; it costs nothing."""

    status = 429
    kind = "overloaded_error"
    code = "resource_unavailable"  # as OpenAI answers in its flex tier
    error_type = "provider_overloaded"


class InternalFailure(ApiError):
    """A defect of ours; the details are in the log under the request id, not in the answer."""


class ShuttingDown(ApiError):
    """The gateway was told to stop, and the time for answers in flight is over."""

    status = 503
    code = "shutting_down"
    error_type = "provider_unavailable"

    def __init__(self) -> None:
        super().__init__(
            "This gateway stops and could not finish the answer. Ask again: another one serves.",
            retry_after=1.0,
        )


class UpstreamFailure(ApiError):
    """An attempt on a deployment did not give a whole answer.

    `upstream_status` is the HTTP status that the upstream answered, 0 if it answered none.
    """

    status = 502
    kind = "upstream_error"
    code = "upstream_failed"
    error_type = "provider_unavailable"
    upstream_status = 0


class UpstreamRefused(UpstreamFailure):
    """The upstream judged the request itself wrong (400, 409, 413, 422)."""

    status = 400
    kind = "invalid_request_error"
    code = "refused_by_model"
    error_type = "invalid_request"


class ContextTooSmall(UpstreamFailure):
    """The request does not fit this deployment, whose context is smaller than the model's."""

    status = ContextLengthExceeded.status
    kind = ContextLengthExceeded.kind
    code = ContextLengthExceeded.code
    error_type = ContextLengthExceeded.error_type


class UpstreamUnreachable(UpstreamFailure):
    """No connection, or it broke before any byte of an answer."""

    code = "upstream_unreachable"


class NoConnection(UpstreamUnreachable):
    """No connection was made: no deployment has seen anything of the request."""


class UpstreamMalformed(UpstreamFailure):
    """The upstream's bytes are not the protocol it should speak."""

    code = "upstream_malformed"


class BodyTooLarge(UpstreamMalformed):
    """The upstream's answer has more bytes than it may."""


class ToolCallBroken(UpstreamMalformed):
    """The model wrote a call that the client's dialect has no way to tell."""

    code = "tool_call_broken"


class UpstreamCut(UpstreamFailure):
    """The answer ended without a finish reason."""

    code = "upstream_cut"


class UpstreamTimeout(UpstreamFailure):
    """One of the attempt's clocks ran out: `clock` is connect, first_token, idle or total."""

    status = 504
    code = "upstream_timeout"
    error_type = "timeout"

    def __init__(self, message: str, *, clock: str) -> None:
        super().__init__(message, details={"clock": clock})
        self.clock = clock


class UpstreamDown(UpstreamFailure):
    """The deployment was found down while a request waited on it. Tells nothing new of it."""

    code = "upstream_down"


class CapacityExhausted(UpstreamFailure):
    """No free slot now; refused at once rather than queued."""

    status = 503
    kind = "overloaded_error"
    code = "capacity_exhausted"
    error_type = "provider_overloaded"


class SlotRecalled(CapacityExhausted):
    """The slot was lent by a reservation whose owner came back for it."""

    code = "slot_recalled"


class ModelDrained(CapacityExhausted):
    """Operators have drained every deployment that could serve it; nobody knows for how long."""

    kind = UpstreamFailure.kind
    code = "model_drained"
    error_type = "provider_unavailable"


class CannotStart(Exception):
    """A process of ours cannot start; the message says why and what to do about it."""
