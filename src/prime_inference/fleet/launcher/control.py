"""Commands to a supervisor over its socket: one JSON line asked, one answered. Empty lines before
the answer say that it is at work."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from prime_inference.fleet.errors import (
    CrashLooping,
    FleetError,
    FleetFrozen,
    FleetNotRunning,
    FleetRefused,
)
from prime_inference.fleet.launcher.state import StateFolder
from prime_inference.fleet.launcher.supervisor import Supervisor

MAX_SOCKET_BYTES = 100  # macOS takes 103
MAX_LINE_BYTES = 4 * 1024 * 1024  # the status of ten thousand workers is 1.5 MB

ALIVE_SECONDS = 1.0  # an empty line so often says that a command is at work
SILENCE_SECONDS = 10.0  # of a supervisor that is asked; a busy machine may hold it up for some

log = logging.getLogger(__name__)

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Command(Struct, frozen=True, forbid_unknown_fields=True):
    """What is asked."""

    verb: Literal["status", "caches", "scale", "drain", "restart", "down"]
    deployment: str = ""
    role: str = ""
    replicas: int = 0
    process: str | None = None


class Reply(Struct, frozen=True):
    """What is answered: a refusal in words, or the fleet as it is now."""

    refused: str = ""
    status: dict[str, Any] = {}
    crash_looping: tuple[str, str, int, str, tuple[str, ...]] | None = None  # the error's fields


async def carry_out(supervisor: Supervisor, command: Command) -> Reply:
    """Do what was asked; refusals become a reply."""
    try:
        match command.verb:
            case "scale":
                await supervisor.scale(command.deployment, command.role, command.replicas)
            case "drain":
                await supervisor.drain(command.deployment)
            case "restart":
                await supervisor.restart(command.deployment, command.process)
            case "down":
                status = await supervisor.status()
                await supervisor.down()
                return Reply(status=status)
            case "caches":
                return Reply(status=await supervisor.caches())
            case "status":
                pass
    except CrashLooping as error:
        return Reply(crash_looping=error.fields)
    except FleetError as error:
        return Reply(refused=str(error))
    return Reply(status=await supervisor.status())


async def _reply(supervisor: Supervisor, line: bytes) -> bytes:
    try:
        reply = await carry_out(supervisor, msgspec.json.decode(line, type=Command))
        return msgspec.json.encode(reply)
    except (msgspec.DecodeError, RecursionError) as error:
        return _refusal(f"not a command: {error}")
    except OSError as error:
        return _refusal(f"{error.filename or 'system'}: {error.strerror or error}")
    except Exception as error:  # a defect, which whoever asks is told as well as the log
        log.exception("a command failed")
        return _refusal(f"the supervisor failed: {type(error).__name__}: {error}")


def _refusal(reason: str) -> bytes:
    """Names of files may be no text."""
    return msgspec.json.encode(Reply(refused=reason.encode(errors="replace").decode()))


@contextlib.asynccontextmanager
async def listening(supervisor: Supervisor, folder: StateFolder) -> AsyncIterator[None]:
    """Answer commands on the fleet's socket, which only its owner can open. Should somebody remove
    it, it is made anew."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        replying = asyncio.ensure_future(_reply(supervisor, await reader.readline()))
        with contextlib.suppress(ConnectionError):  # whoever asked has left
            while not (await asyncio.wait({replying}, timeout=ALIVE_SECONDS))[0]:
                writer.write(b"\n")
                await writer.drain()
            writer.write(replying.result() + b"\n")
            await writer.drain()
        writer.close()

    server = await _listen(folder, serve)

    async def keep() -> None:
        nonlocal server
        while True:
            await asyncio.sleep(ALIVE_SECONDS)
            if not folder.socket.exists():
                server.close()
                with contextlib.suppress(OSError):  # the folder is gone too: later
                    server = await _listen(folder, serve)

    keeping = asyncio.ensure_future(keep())
    try:
        yield
    finally:
        keeping.cancel()
        server.close()
        folder.socket.unlink(missing_ok=True)


async def _listen(folder: StateFolder, serve: Serve) -> asyncio.Server:
    """Raises OSError."""
    folder.socket.unlink(missing_ok=True)
    with _short(folder.socket) as path:
        server = await asyncio.start_unix_server(serve, path, limit=MAX_LINE_BYTES)
    folder.socket.chmod(0o600)
    return server


@contextlib.contextmanager
def _short(socket: Path) -> Iterator[str]:
    """A name of the socket that the kernel takes. It takes 107 bytes, and state folders may lie
    deep; on Linux an open folder has a short name. Raises OSError."""
    if len(os.fsencode(socket)) <= MAX_SOCKET_BYTES:
        yield str(socket)
        return
    folder = os.open(socket.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{socket.name}"
    finally:
        os.close(folder)


async def ask(
    folder: StateFolder, command: Command, *, silence_seconds: float = SILENCE_SECONDS
) -> dict[str, Any]:
    """The fleet's status after the command.

    Raises FleetNotRunning, FleetRefused, CrashLooping; FleetFrozen where somebody supervises the
    fleet and nothing is heard of him for `silence_seconds`.
    """
    try:
        return await _ask(folder, command, silence_seconds)
    except TimeoutError:
        raise FleetFrozen(folder.supervisor(), silence_seconds) from None
    except OSError:  # it was killed
        raise FleetNotRunning("The supervisor ended before it answered.") from None


async def _ask(folder: StateFolder, command: Command, silence_seconds: float) -> dict[str, Any]:
    try:
        with _short(folder.socket) as path:
            async with asyncio.timeout(silence_seconds):
                reader, writer = await asyncio.open_unix_connection(path, limit=MAX_LINE_BYTES)
    except TimeoutError:
        raise
    except OSError:
        raise FleetNotRunning(f"No process supervises a fleet in {folder.folder}.") from None
    try:
        writer.write(msgspec.json.encode(command) + b"\n")
        line = b"\n"
        while line == b"\n":  # it is at work
            async with asyncio.timeout(silence_seconds):
                line = await reader.readline()
    finally:
        writer.close()
    if not line:
        raise FleetNotRunning("The supervisor ended before it answered.")
    reply = msgspec.json.decode(line, type=Reply)
    if reply.crash_looping is not None:
        raise CrashLooping(*reply.crash_looping)
    if reply.refused:
        raise FleetRefused(reply.refused)
    return reply.status
