"""Three client halves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from benchmarks.designs.handler import Client

PATH = "/chat/completions"
HEADERS = {"content-type": "application/json"}
LARGEST_ANSWER = 1024 * 1024


class OurClient:
    """`wire.http_client.HttpPool`."""

    def __init__(self, base_url: str) -> None:
        from prime_inference.wire.http_client import HttpPool, Origin

        self._pool = HttpPool(Origin.parse(base_url), headers=b"content-type: application/json\r\n")

    async def whole(self, body: bytes) -> bytes:
        response = await self._pool.fetch("POST", PATH, body)
        return await response.read(LARGEST_ANSWER)

    async def stream(self, body: bytes) -> AsyncIterator[bytes]:
        response = await self._pool.fetch("POST", PATH, body)
        while data := await response.chunk():
            yield data


class AiohttpClient:
    """aiohttp's session, connections unlimited."""

    def __init__(self, base_url: str) -> None:
        import aiohttp

        self._url = base_url + PATH
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), headers=HEADERS, auto_decompress=False
        )

    async def whole(self, body: bytes) -> bytes:
        async with self._session.post(self._url, data=body) as response:
            answer: bytes = await response.read()
            return answer

    async def stream(self, body: bytes) -> AsyncIterator[bytes]:
        async with self._session.post(self._url, data=body) as response:
            async for data in response.content.iter_any():
                yield data


class HttpxClient:
    """httpx, connections unlimited."""

    def __init__(self, base_url: str) -> None:
        import httpx

        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        self._url = base_url + PATH
        self._client = httpx.AsyncClient(limits=limits, headers=HEADERS, timeout=60)

    async def whole(self, body: bytes) -> bytes:
        response = await self._client.post(self._url, content=body)
        return response.content

    async def stream(self, body: bytes) -> AsyncIterator[bytes]:
        async with self._client.stream("POST", self._url, content=body) as response:
            async for data in response.aiter_raw():
                yield data


def make_client(name: str, base_url: str) -> Client:
    """`ours`, `aiohttp` or `httpx`; to be called on the running loop."""
    kinds: dict[str, Callable[[str], Client]] = {
        "ours": OurClient,
        "aiohttp": AiohttpClient,
        "httpx": HttpxClient,
    }
    return kinds[name](base_url)
