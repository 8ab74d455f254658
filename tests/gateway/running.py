"""A gateway on the test's own event loop, with its engines, and a client that sees every byte."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from prime_inference import compose
from prime_inference.adapters.memory.catalog import MemoryCatalog
from prime_inference.domain.models import Deployment, EngineKind, Model
from prime_inference.gateway.cache_figures import Reports
from prime_inference.gateway.clocks import ClockLimits
from prime_inference.gateway.live_fleet import LiveFleet
from prime_inference.gateway.run import Run
from prime_inference.gateway.sessions import Homes, begins
from prime_inference.gateway.toolcalls.constrain import TOOL_PARAMETERS
from prime_inference.gateway.upstreams import Upstream
from prime_inference.wire.sse import SseFramer

MODEL = "acme/echo-1"
OTHER_MODEL = "acme/vision-2"
MESSAGES: list[dict[str, Any]] = [{"role": "user", "content": "Tell me about a river"}]
ROUTES = frozenset({"chat/completions", "completions", "embeddings"})
CONTEXT_TOKENS = 4096


class InOrder(Random):
    """Ties between deployments are broken in the catalogue's order."""

    def random(self) -> float:
        return 0.0


def begin_in_order(patch: pytest.MonkeyPatch) -> None:
    """Conversations that begin go in the catalogue's order, as ties do."""
    choose = Homes.choose

    def in_order(
        self: Homes, run: Run, able: Mapping[str, Upstream], offered: Sequence[str]
    ) -> str:
        return offered[0] if begins(run.operation) else choose(self, run, able, offered)

    patch.setattr(Homes, "choose", in_order)


@dataclass
class Streamed:
    """A stream as it arrived: status, head, raw bytes and the events in them."""

    status: int
    headers: httpx.Headers
    raw: bytes
    events: list[bytes] = field(default_factory=list)

    @property
    def chunks(self) -> list[dict[str, Any]]:
        """Every event but `[DONE]`."""
        return [json.loads(event) for event in self.events if event != b"[DONE]"]

    @property
    def done(self) -> bool:
        return bool(self.events) and self.events[-1] == b"[DONE]"

    @property
    def error(self) -> dict[str, Any] | None:
        errors = [chunk["error"] for chunk in self.chunks if "error" in chunk]
        assert len(errors) <= 1
        return errors[0] if errors else None

    @property
    def choices(self) -> list[dict[str, Any]]:
        return [choice for chunk in self.chunks for choice in chunk["choices"]]

    def text(self, index: int = 0) -> str:
        """What one choice says."""
        chosen = [choice for choice in self.choices if choice["index"] == index]
        return "".join(
            c["text"] if "text" in c else c["delta"].get("content") or "" for c in chosen
        )

    def finish_reasons(self, index: int = 0) -> list[str | None]:
        return [choice["finish_reason"] for choice in self.choices if choice["index"] == index]

    @property
    def comments(self) -> int:
        return sum(line.startswith(b":") for line in self.raw.split(b"\n"))


@dataclass
class RunningGateway:
    """What a test knows of a gateway that runs, and how it asks it."""

    base_url: str
    control_url: str
    key: str
    state_dir: Path
    client: httpx.AsyncClient

    def url(self, path: str) -> str:
        return f"{self.base_url}{path}"

    @property
    def host(self) -> str:
        return httpx.URL(self.base_url).host

    @property
    def port(self) -> int:
        port = httpx.URL(self.base_url).port
        assert port is not None
        return port

    def authorization(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}"}

    async def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        """Post JSON, or bytes as they are, with the key."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        fields = {"content-type": "application/json", **self.authorization(), **headers}
        return await self.client.post(self.url(path), content=content, headers=fields)

    async def get(self, path: str) -> httpx.Response:
        return await self.client.get(self.url(path), headers=self.authorization())

    async def chat(self, **fields: Any) -> httpx.Response:
        """A chat completion; `fields` over a plain request."""
        return await self.post("/chat/completions", chat(**fields))

    async def stream(self, path: str = "/chat/completions", **fields: Any) -> Streamed:
        """A stream, read to its end."""
        body = {"model": MODEL, "stream": True, **fields}
        if path == "/chat/completions":
            body.setdefault("messages", MESSAGES)
        async with self.client.stream(
            "POST", self.url(path), json=body, headers=self.authorization()
        ) as response:
            raw = await response.aread()
        is_stream = response.headers["content-type"].startswith("text/event-stream")
        events = SseFramer().feed(raw) if is_stream else []
        return Streamed(response.status_code, response.headers, raw, events)

    def request(
        self, path: str, body: Any = b"", *fields: str, method: str = "POST", version: str = "1.1"
    ) -> bytes:
        """The bytes of a request with the key; JSON, or bytes as they are."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = [
            f"{method} /api/v1{path} HTTP/{version}",
            f"host: {self.host}",
            f"authorization: Bearer {self.key}",
            f"content-length: {len(content)}",
            *fields,
        ]
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + content

    @contextlib.asynccontextmanager
    async def connect(
        self, receive_buffer: int = 0
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """A bare connection; `receive_buffer` bytes are held for a client that does not read."""
        sock = socket.create_connection((self.host, self.port))
        if receive_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        reader, writer = await asyncio.open_connection(sock=sock, limit=receive_buffer or 2**16)
        try:
            yield reader, writer
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def exchange(self, data: bytes) -> bytes:
        """Send bytes, and read until the gateway closes the connection."""
        async with self.connect() as (reader, writer), asyncio.timeout(5):
            writer.write(data)
            return await reader.read(-1)

    async def generations(self, count: int) -> list[dict[str, Any]]:
        """The account of generations once `count` of them stand in it, and not one more."""
        path = self.state_dir / "generations.jsonl"
        lines: list[bytes] = []
        async with asyncio.timeout(2):
            while len(lines) < count:
                await self.client.get(f"{self.control_url}/metrics")  # writes what is gathered
                lines = path.read_bytes().splitlines()
        assert len(lines) == count
        return [json.loads(line) for line in lines]

    async def admin(self, method: str, path: str, body: Any = None) -> Any:
        """Ask the admin API as an operator does; the answer, which must be a success."""
        response = await self.admin_response(method, path, body)
        assert response.status_code == 200, response.text
        return response.json()

    async def admin_response(self, method: str, path: str, body: Any = None) -> httpx.Response:
        key = (self.state_dir / "admin_key").read_text().strip()
        return await self.client.request(
            method,
            f"{self.control_url}/admin/v1/{path}",
            json=body,
            headers={"authorization": f"Bearer {key}"},
        )

    async def metric(self, name: str, **labels: str) -> float:
        """Sum of the samples of that name whose labels hold `labels`."""
        text = (await self.client.get(f"{self.control_url}/metrics")).text
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )


def chat(**fields: Any) -> dict[str, Any]:
    """A plain chat request with `fields` over it."""
    return {"model": MODEL, "messages": MESSAGES, **fields}


def deployment(number: int, base_url: str, **fields: Any) -> Deployment:
    """A deployment of the test's model."""
    engine: EngineKind = fields.pop("engine", "vllm")
    reads_calls = TOOL_PARAMETERS if "tool_parser" in fields else frozenset[str]()
    return Deployment(
        **{
            "id": f"engine-{number}",
            "model": MODEL,
            "datacenter": f"dc-{number}",
            "base_url": base_url,
            "engine": engine,
            "slots": 256,
            "upstream_model": "engine-name",
            "parameters": compose.ENGINE_PARAMETERS[engine] | reads_calls,
            "routes": ROUTES,
            **fields,
        }
    )


def models() -> list[Model]:
    plain = Model(MODEL, "r1", 1_700_000_000, CONTEXT_TOKENS, CONTEXT_TOKENS, "Echo 1")
    vision = Model(
        OTHER_MODEL,
        "r2",
        1_700_000_001,
        CONTEXT_TOKENS,
        CONTEXT_TOKENS,
        modalities=frozenset({"text", "image"}),
    )
    return [plain, vision]


@contextlib.asynccontextmanager
async def running(
    state_dir: Path,
    deployments: Sequence[Deployment],
    *,
    clocks: ClockLimits | None = None,
    keep_alive_seconds: float = 15.0,
    not_ready: Callable[[], str | None] = lambda: None,
    follow: Callable[[LiveFleet], Coroutine[Any, Any, None]] | None = None,
    redis_url: str | None = None,
    catalog_models: Sequence[Model] | None = None,
    billing: compose.BillingOptions | None = None,
    cache_reports: Reports | None = None,
) -> AsyncIterator[RunningGateway]:
    """A gateway over `deployments`; `follow` may change them."""
    options = compose.ListenOptions(
        state_dir,
        port=0,
        control_port=0,
        keep_alive_seconds=keep_alive_seconds,
        clocks=clocks or ClockLimits(),
        redis_url=redis_url,
        billing=billing,
    )
    catalog = MemoryCatalog(catalog_models or models(), deployments)
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with (
        compose.listening(catalog, options, not_ready, InOrder(), follow, cache_reports) as (
            describe,
            _,
        ),
        httpx.AsyncClient(trust_env=False, verify=False, limits=limits, timeout=10) as client,
    ):
        endpoint = describe(MODEL)
        yield RunningGateway(
            endpoint.base_url, endpoint.control_url, endpoint.api_key, state_dir, client
        )


async def eventually(condition: Callable[[], bool], seconds: float = 2.0) -> float:
    """Wait until `condition` holds; returns how long it took. Fails after `seconds`."""
    began = time.monotonic()
    while not condition():
        waited = time.monotonic() - began
        assert waited < seconds, "it did not come to pass"
        await asyncio.sleep(0.005)
    return time.monotonic() - began
