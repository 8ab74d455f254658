"""A mock engine's process: on loopback, until its parent is gone.

Run as `python -m prime_inference.engines.mock.child` with the fields of `MockSettings` as one
JSON argument. Writes one line to standard output when it listens; ends with standard input.
"""

from __future__ import annotations

import asyncio
import os
import sys

import msgspec
import uvloop

from prime_inference.engines.mock.engine import MockEngine
from prime_inference.engines.mock.process import MockSettings
from prime_inference.engines.parent import die_with_parent


def main() -> None:
    settings = msgspec.json.decode(sys.argv[1], type=MockSettings)
    die_with_parent(settings.parent)
    uvloop.run(serve(settings))


async def serve(settings: MockSettings) -> None:
    """Answer until standard input ends."""
    engine = MockEngine(
        models=[settings.model],
        pace=settings.pace_ms / 1000,
        first_token=settings.first_token_ms / 1000,
        context_tokens=settings.context_tokens,
    )
    base_url = await engine.start(port=settings.port, reuse_port=True)
    print(base_url, flush=True)  # noqa: T201  # the supervisor reads it
    while await asyncio.to_thread(os.read, 0, 1024):
        pass
    await engine.stop()


if __name__ == "__main__":
    main()
