"""A stretch of network in front of an engine, which can be broken."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import socket
import struct

RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER: on, zero seconds
PIECE_BYTES = 64 * 1024


class State(enum.Enum):
    """What the network does with bytes and connections."""

    WHOLE = "whole"
    REFUSING = "refusing"  # nobody listens: connections are refused, those there are reset
    BLACK_HOLE = "black hole"  # connections open, and nothing passes any more


class Link:
    """A TCP relay on a port of its own."""

    def __init__(self, host: str, port: int) -> None:
        self._target = host, port
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._passes = asyncio.Event()
        self._passes.set()
        self._address = "127.0.0.1", 0
        self.state = State.WHOLE
        self.delay = 0.0  # seconds that each piece from the engine is late
        self.connections = 0  # made so far

    @property
    def base_url(self) -> str:
        return f"http://{self._address[0]}:{self._address[1]}/v1"

    @property
    def port(self) -> int:
        return self._address[1]

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self._address = host, port
        await self._listen()

    async def stop(self) -> None:
        await self._close_listener()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- faults

    async def refuse(self) -> None:
        """As when the process behind it has died."""
        self.state = State.REFUSING
        await self._close_listener()
        self.cut()

    def black_hole(self) -> None:
        """As when a machine or the network between has gone: no answer, no refusal."""
        self.state = State.BLACK_HOLE
        self._passes.clear()

    async def heal(self) -> None:
        """As it was. Connections that sank in a black hole were lost: they are reset now."""
        if self.state is State.BLACK_HOLE:
            self.cut()
        self.state = State.WHOLE
        self._passes.set()
        if self._server is None:
            await self._listen()

    def cut(self) -> None:
        """Reset every connection there is."""
        for writer in list(self._writers):
            sock = writer.get_extra_info("socket")
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
            writer.transport.abort()

    # -- relaying

    async def _listen(self) -> None:
        host, port = self._address
        self._server = await asyncio.start_server(
            self._relay, host, port, backlog=4096, reuse_address=True
        )
        self._address = host, self._server.sockets[0].getsockname()[1]

    async def _close_listener(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
            await asyncio.sleep(0)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        self.connections += 1
        try:
            engine_reader, engine_writer = await asyncio.open_connection(*self._target)
            self._writers.add(engine_writer)
            try:
                async with asyncio.TaskGroup() as both:
                    both.create_task(self._copy(reader, engine_writer, late=False))
                    both.create_task(self._copy(engine_reader, writer, late=True))
            finally:
                self._writers.discard(engine_writer)
                engine_writer.transport.abort()
        except* OSError:
            pass  # one side has gone: so does the other
        finally:
            self._writers.discard(writer)
            self._tasks.discard(task)
            writer.transport.abort() if self.state is not State.WHOLE else writer.close()

    async def _copy(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, late: bool
    ) -> None:
        while data := await reader.read(PIECE_BYTES):
            await self._passes.wait()
            if late and self.delay:
                await asyncio.sleep(self.delay)
            writer.write(data)
            await writer.drain()
        await self._passes.wait()
        writer.close()
        raise ConnectionResetError("the other side has closed")
