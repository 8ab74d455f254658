"""Errors in Anthropic's shape and under the statuses that its SDKs tell apart."""

from __future__ import annotations

import msgspec

from prime_inference.domain.errors import (
    ApiError,
    AuthenticationFailed,
    BudgetExceeded,
    CapacityExhausted,
    InvalidRequest,
    MethodNotAllowed,
    ModelDrained,
    NotFound,
    PayloadTooLarge,
    PermissionDenied,
    RateLimited,
    UpstreamRefused,
    UpstreamTimeout,
)
from prime_inference.wire.http import Headers
from prime_inference.wire.openai.errors import ErrorObject, error_headers

OVERLOADED = 529  # Anthropic's own status for it

KINDS: dict[type[ApiError], str] = {
    InvalidRequest: "invalid_request_error",
    UpstreamRefused: "invalid_request_error",
    MethodNotAllowed: "invalid_request_error",
    AuthenticationFailed: "authentication_error",
    BudgetExceeded: "billing_error",
    PermissionDenied: "permission_error",
    NotFound: "not_found_error",
    PayloadTooLarge: "request_too_large",
    RateLimited: "rate_limit_error",
    CapacityExhausted: "overloaded_error",
    ModelDrained: "api_error",
    UpstreamTimeout: "timeout_error",
}
"""Anthropic's types for our errors and what descends from them; the others are `api_error`."""

IN_BAND = {
    CapacityExhausted.code: "overloaded_error",
    UpstreamTimeout.code: "timeout_error",
    RateLimited.code: "rate_limit_error",
}


def error_type(error: ApiError) -> str:
    """Anthropic's `type` of an error."""
    for ancestor in type(error).__mro__:
        if ancestor in KINDS:
            return KINDS[ancestor]
    return "api_error"


def in_band_type(error: ErrorObject) -> str:
    """Anthropic's `type` of an error in the midst of a chat stream."""
    return IN_BAND.get(error.code, "api_error")


def render_error(error: ApiError, request_id: str) -> tuple[int, Headers, bytes]:
    """Status, headers and body of an error answer."""
    told_type = error_type(error)
    status = OVERLOADED if told_type == KINDS[CapacityExhausted] else error.status
    message = error.message
    if error.param and error.param not in message:  # there is no other place for it
        message = f"{error.param}: {message}"
    told: dict[str, object] = {"type": told_type, "message": message}
    if error.details:
        told["details"] = error.details
    body = {"type": "error", "error": told, "request_id": request_id}
    return status, error_headers(error), msgspec.json.encode(body)
