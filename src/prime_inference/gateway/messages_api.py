"""`/messages`: requests and answers of the Messages API over the chat path."""

from __future__ import annotations

from collections.abc import Awaitable

from prime_inference.accounts.directory import check_model
from prime_inference.domain.errors import ApiError
from prime_inference.domain.keys import ApiKey
from prime_inference.gateway.dialect_reply import DialectReply
from prime_inference.gateway.inference import Inference
from prime_inference.gateway.operations import Operation, chat_operation
from prime_inference.gateway.token_count import TokenCounter
from prime_inference.wire.anthropic.request import (
    decode_count_request,
    decode_messages_request,
    decode_tools,
)
from prime_inference.wire.anthropic.stream import MessageStream
from prime_inference.wire.anthropic.to_chat import renamed, to_chat
from prime_inference.wire.http import HeaderLines, Reply
from prime_inference.wire.openai.bounds import SchemaBounds
from prime_inference.wire.openai.chat_request import ChatRequest, check_chat_request

ID_PREFIX = "msg_"


class MessagesApi:
    """Serves messages and counts of their tokens."""

    def __init__(self, inference: Inference, counter: TokenCounter) -> None:
        self._inference = inference
        self._counter = counter
        self._schemas = SchemaBounds()

    def create(self, body: bytes, key: ApiKey, request_id: str, reply: Reply) -> Awaitable[None]:
        """`POST /messages`. Raises InvalidRequest."""
        request = decode_messages_request(body)
        operation = self._operation(to_chat(request, decode_tools(request.tools or [])))
        stream = MessageStream(request_id=request_id, model=request.model)
        # under this name Anthropic's SDKs look for it
        header = HeaderLines(b"request-id: %b\r\n" % request_id.encode())
        answer = DialectReply(reply, stream, header)
        return self._serve(operation, key, request_id, answer)

    async def _serve(
        self, operation: Operation, key: ApiKey, request_id: str, answer: DialectReply
    ) -> None:
        try:
            await self._inference.serve(operation, key, request_id, answer)
        except ApiError as error:
            raise renamed(error) from error
        answer.complete()

    async def count(self, body: bytes, key: ApiKey) -> dict[str, int]:
        """`POST /messages/count_tokens`. Raises ApiError."""
        request = decode_count_request(body)
        operation = self._operation(to_chat(request, decode_tools(request.tools or [])))
        check_model(key, operation.model)
        try:
            return {"input_tokens": await self._counter.count(operation)}
        except ApiError as error:
            raise renamed(error) from error

    def _operation(self, chat: ChatRequest) -> Operation:
        try:
            check_chat_request(chat, self._schemas)
        except ApiError as error:
            raise renamed(error) from error
        return chat_operation(chat, id_prefix=ID_PREFIX)
