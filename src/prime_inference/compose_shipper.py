"""The shipper as a process of its own, so that its work takes no time from the gateway's.

It is told over standard input where to read and where to write (a URL may hold a password,
and command lines are for all to see), and ends when its input does: when the gateway stops,
or is gone. What it has not shipped by then, the next one does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from prime_inference.adapters.files.outbox import FileOutboxReader
from prime_inference.adapters.sql.ledger import SqlLedger
from prime_inference.adapters.sql.open import open_database
from prime_inference.billing.shipper import Shipper

log = logging.getLogger(__name__)

LOOK_S = 1.0  # whether the thread still runs: its end is not expected


class ShipperOrder(msgspec.Struct, frozen=True):
    """What the process is told."""

    database: str
    state_dir: str
    source: str


class ShipperEnded(Exception):
    """It ended by itself, which it should not; its log says why."""


class ShipperThread:
    """A shipper in a thread of this process. `run` until cancelled, then `stop`."""

    def __init__(self, shipper: Shipper) -> None:
        self._shipper = shipper
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="shipper")

    async def run(self) -> None:
        """Raises what ended it; it may be called again."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._shipper.run)

    async def stop(self) -> None:
        """Let it ship what is there, and wait for it."""
        self._shipper.stop()
        await asyncio.to_thread(self._thread.shutdown)


class ShipperProcess:
    """A shipper in a process of its own. `run` until cancelled, then `stop`."""

    def __init__(self, order: ShipperOrder) -> None:
        self._order = order
        self._process: asyncio.subprocess.Process | None = None

    async def run(self) -> None:
        """Raises ShipperEnded; it may be called again."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "prime_inference.compose_shipper",
            stdin=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the gateway, which then ends this one
        )
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(self._order) + b"\n")
        raise ShipperEnded(f"the shipper's process ended with {await self._process.wait()}")

    async def stop(self) -> None:
        """Let it ship what is there, and wait for it."""
        if self._process is not None and self._process.returncode is None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            await self._process.wait()


def ship(order: ShipperOrder, until_closed: int) -> None:
    """Ship until that file descriptor ends. Raises what ends the shipper before."""
    state_dir = Path(order.state_dir)
    with contextlib.ExitStack() as stack:
        reader = FileOutboxReader(state_dir / "outbox")
        stack.callback(reader.close)
        ledger = SqlLedger(open_database(order.database, state_dir))
        stack.callback(ledger.close)
        shipper = Shipper(reader, ledger, order.source)
        thread = stack.enter_context(ThreadPoolExecutor(1, thread_name_prefix="shipper"))
        stack.callback(shipper.stop)
        running = thread.submit(shipper.run)
        while not running.done():
            ready, _, _ = select.select([until_closed], [], [], LOOK_S)
            if ready and not os.read(until_closed, 4096):
                break
        shipper.stop()
        running.result()


def main() -> None:
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    line = b""
    while not line.endswith(b"\n"):  # unbuffered: what comes after the line is `ship`'s
        if not (byte := os.read(0, 1)):
            return
        line += byte
    ship(msgspec.json.decode(line, type=ShipperOrder), until_closed=0)


if __name__ == "__main__":
    main()
