"""`/responses`: requests and answers of the Responses API over the chat path, and its store."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from msgspec import Raw

from prime_inference.domain.errors import (
    ApiError,
    InternalFailure,
    InvalidRequest,
    NotFound,
    PreviousResponseNotFound,
)
from prime_inference.domain.keys import ApiKey
from prime_inference.gateway.dialect_reply import DialectReply
from prime_inference.gateway.inference import Inference
from prime_inference.gateway.operations import chat_operation
from prime_inference.ports.responses import ResponseStore, StoredResponse, StoreUnavailable
from prime_inference.wire.http import HeaderLines, Reply
from prime_inference.wire.openai.bounds import MAX_MESSAGES, SchemaBounds
from prime_inference.wire.openai.chat_request import check_chat_request
from prime_inference.wire.responses.input_items import items_page, read_page_query
from prime_inference.wire.responses.items import Item, decode_items
from prime_inference.wire.responses.request import (
    ResponsesRequest,
    decode_responses_request,
    decode_tools,
)
from prime_inference.wire.responses.response import ResponseHead
from prime_inference.wire.responses.stream import ResponseStream
from prime_inference.wire.responses.to_chat import Conversation, renamed, to_chat

log = logging.getLogger(__name__)

STORED_SECONDS = 30 * 24 * 3600  # as OpenAI states for stored responses
ID_PREFIX = "resp_"


class ResponsesApi:
    """Serves responses; each key sees its own only."""

    def __init__(
        self,
        inference: Inference,
        store: ResponseStore,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._inference = inference
        self._store = store
        self._now = now
        self._schemas = SchemaBounds()

    def create(self, body: bytes, key: ApiKey, request_id: str, reply: Reply) -> Awaitable[None]:
        """`POST /responses`. Raises InvalidRequest."""
        request = decode_responses_request(body)
        added = [_said(request.input)] if isinstance(request.input, str) else request.input
        return self._create(request, added, key, request_id, reply)

    async def _create(
        self,
        request: ResponsesRequest,
        added: list[Raw],
        key: ApiKey,
        request_id: str,
        reply: Reply,
    ) -> None:
        items = decode_items(added)
        before = await self._before(key, request.previous_response_id)
        if len(before) + len(items) > MAX_MESSAGES:
            raise InvalidRequest(
                f"The conversation has more than {MAX_MESSAGES} items.",
                param="previous_response_id",
            )
        chat = to_chat(request, Conversation(before, items), decode_tools(request.tools or []))
        now = self._now()
        head = ResponseHead(
            request,
            answer_id=request_id,
            created=int(now),
            expires_at=int(now) + STORED_SECONDS,
        )
        stream = ResponseStream(head)
        answer = DialectReply(reply, stream, HeaderLines(b""))
        try:
            check_chat_request(chat, self._schemas)
            operation = chat_operation(chat, id_prefix=ID_PREFIX)
            await self._inference.serve(operation, key, request_id, answer)
        except ApiError as error:
            raise renamed(error) from error
        if answer.whole and request.stored:
            stored = StoredResponse(
                id=head.id,
                owner=key.key_id,
                previous=request.previous_response_id,
                items=msgspec.json.encode([*added, *stream.document["output"]]),
                inputs=len(added),
                body=msgspec.json.encode(stream.document),
                expires_at=now + STORED_SECONDS,
            )
            try:
                await self._store.put(stored, now)
            except StoreUnavailable:
                log.exception("response %s could not be stored", head.id)
                head.not_stored()
        answer.complete()

    async def show(self, response_id: str, key: ApiKey) -> bytes:
        """`GET /responses/{id}`: the object as it was answered. Raises NotFound."""
        return (await self._find(response_id, key)).body

    async def remove(self, response_id: str, key: ApiKey) -> dict[str, object]:
        """`DELETE /responses/{id}`. Raises NotFound."""
        try:
            removed = await self._store.remove(key.key_id, response_id)
        except StoreUnavailable as error:
            raise _unavailable() from error
        if not removed:
            raise _not_found(response_id)
        return {"id": response_id, "object": "response.deleted", "deleted": True}

    async def cancel(self, response_id: str, key: ApiKey) -> dict[str, object]:
        """`POST /responses/{id}/cancel`. Raises NotFound, InvalidRequest: all here is over."""
        await self._find(response_id, key)
        raise InvalidRequest(
            "Only a response that runs in the background can be cancelled, and none does here."
            " To stop an answer, close its connection."
        )

    async def input_items(self, response_id: str, key: ApiKey, query: str) -> dict[str, Any]:
        """`GET /responses/{id}/input_items`. Raises InvalidRequest, NotFound."""
        page = read_page_query(query)
        stored = await self._find(response_id, key)
        items = msgspec.json.decode(stored.items)[: stored.inputs]
        return items_page(items, f"in_{response_id.removeprefix(ID_PREFIX)}_", page)

    async def _find(self, response_id: str, key: ApiKey) -> StoredResponse:
        try:
            stored = await self._store.get(key.key_id, response_id, self._now())
        except StoreUnavailable as error:
            raise _unavailable() from error
        if stored is None:
            raise _not_found(response_id)
        return stored

    async def _before(self, key: ApiKey, previous: str | None) -> list[Item]:
        """What was said up to `previous`: all its turns' inputs and outputs."""
        if previous is None:
            return []
        try:
            turns = await self._store.conversation(key.key_id, previous, self._now())
        except StoreUnavailable as error:
            raise _unavailable() from error
        if turns is None:
            raise PreviousResponseNotFound(
                f"Previous response with id '{previous}' not found: it, or a turn before it,"
                " is not stored under this key any more, or never was.",
                param="previous_response_id",
            )
        items: list[Item] = []
        for turn in turns:
            items += decode_items(msgspec.json.decode(turn, type=list[Raw]))
        return items


def _said(text: str) -> Raw:
    """A text as the input item that it stands for."""
    return Raw(msgspec.json.encode({"type": "message", "role": "user", "content": text}))


def _not_found(response_id: str) -> NotFound:
    return NotFound(f"Response with id '{response_id[:64]}' not found.")


def _unavailable() -> InternalFailure:
    return InternalFailure("The store of responses cannot be used now. Try `store: false`.")
