"""The admin API: who may do it, where it goes, and how it fails. What it does is one
module for each noun."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import re
from collections.abc import Iterable
from urllib.parse import unquote

import msgspec

from prime_inference.accounts.live import LiveDirectory
from prime_inference.control.calls import Call, Operations
from prime_inference.domain.errors import (
    ApiError,
    AuthenticationFailed,
    CapacityExhausted,
    InternalFailure,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
)
from prime_inference.gateway.account_api import query_of
from prime_inference.ports.accounts import AccountExists, AccountsUnavailable, UnknownAccount
from prime_inference.ports.ledger import LedgerUnavailable, TransferConflict, TransferRefused
from prime_inference.wire.http import Reply, Request
from prime_inference.wire.openai.errors import JSON_TYPE, render_error

log = logging.getLogger(__name__)

BASE = "/admin/v1"
ACTOR = re.compile(rb"[\x21-\x7e]{1,64}")


class AdminApi:
    """Everything under /admin/v1, for whoever has the admin key."""

    def __init__(
        self,
        nouns: Iterable[Operations],
        directory: LiveDirectory,
        admin_key: str,
    ) -> None:
        self._directory = directory
        self._digest = hashlib.sha256(admin_key.encode()).digest()
        self._routes = [
            (method, re.compile(f"{BASE}/{pattern}"), operation)
            for noun in nouns
            for (method, pattern), operation in noun.routes().items()
        ]

    async def handle(self, request: Request, reply: Reply) -> None:
        try:
            answer = await self._answer(request)
        except ApiError as error:
            reply.send(*render_error(error))
        except Exception:
            log.exception("admin request failed")
            reply.send(*render_error(InternalFailure("Internal error; the log says more.")))
        else:
            reply.send(200, [JSON_TYPE, (b"cache-control", b"no-store")], answer)

    async def _answer(self, request: Request) -> bytes:
        actor = self._authenticate(request)
        query, path = query_of(request), unquote(request.path)
        if not path.isprintable():
            raise InvalidRequest("The path holds an unprintable character.")
        allowed = []
        for method, pattern, operation in self._routes:
            found = pattern.fullmatch(path)
            if found is None:
                continue
            if method == request.method:
                call = Call(actor, request.body, query, found.groups())
                return await self._run(operation, call)
            allowed.append(method)
        if allowed:
            raise MethodNotAllowed(f"That takes {', '.join(allowed)}.", allowed=allowed)
        raise NotFound(f"There is nothing at {request.path[:200]}.")

    async def _run(self, operation: object, call: Call) -> bytes:
        assert callable(operation)
        try:
            answer = await asyncio.to_thread(operation, call)
        except (AccountsUnavailable, LedgerUnavailable) as error:
            raise _away(error) from error
        except UnknownAccount as error:
            text = str(error)
            raise NotFound(f"{text[:1].upper()}{text[1:]}.") from error
        except (AccountExists, TransferConflict, TransferRefused, ValueError) as error:
            raise InvalidRequest(f"{error}.") from error
        try:
            await self._directory.refresh()
        except AccountsUnavailable as error:
            raise _away(error) from error
        return msgspec.json.encode(answer)

    def _authenticate(self, request: Request) -> str:
        """Who asks, for the audit log. Raises AuthenticationFailed."""
        scheme, _, token = (request.header(b"authorization") or b"").partition(b" ")
        found = hashlib.sha256(token.strip()).digest()
        if scheme.lower() != b"bearer" or not hmac.compare_digest(found, self._digest):
            raise AuthenticationFailed("The admin key is missing or wrong.")
        name = request.header(b"x-prime-actor") or b""
        return f"admin:{name.decode()}" if ACTOR.fullmatch(name) else "admin"


def _away(error: Exception) -> CapacityExhausted:
    log.warning("the database is away: %s", error)
    return CapacityExhausted("The database is away.", retry_after=1)
