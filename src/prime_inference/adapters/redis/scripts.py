"""Runs Lua scripts by their hash, and by their text where a server or proxy wants it so."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import NoScriptError, ResponseError

_log = logging.getLogger(__name__)

Argument = str | int | float


class Script:
    """One of the files in `lua/`, after what all of them share."""

    def __init__(self, name: str) -> None:
        self.name = name
        folder = files(__package__).joinpath("lua")
        self.text = "".join(folder.joinpath(f"{each}.lua").read_text() for each in ("common", name))
        self.sha1 = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()


class ScriptRunner:
    """EVALSHA; EVAL where the server has not seen the script, or EVALSHA is not allowed.

    SCRIPT LOAD is never used: EVAL caches the script as well, and some proxies block SCRIPT.
    """

    def __init__(self, client: Redis) -> None:
        self._client = client
        self._by_hash = True

    async def run(self, script: Script, keys: Sequence[str], *arguments: Argument) -> Any:
        """The script's answer. Raises what redis-py raises."""
        return (await self.run_many(script, [(keys, arguments)]))[0]

    async def run_many(
        self, script: Script, calls: Sequence[tuple[Sequence[str], Sequence[Argument]]]
    ) -> list[Any]:
        """One answer per call, in one round trip. Raises the first error."""
        if self._by_hash:
            answers = await self._send("EVALSHA", script.sha1, calls)
            error = next((a for a in answers if isinstance(a, ResponseError)), None)
            if error is None:
                return answers
            if not isinstance(error, NoScriptError):
                if not _forbids(error):
                    raise error
                self._by_hash = False
                _log.warning("the server does not take EVALSHA (%s); scripts are sent whole", error)
        answers = await self._send("EVAL", script.text, calls)
        for answer in answers:
            if isinstance(answer, ResponseError):
                raise answer
        return answers

    async def _send(
        self,
        command: str,
        script: str,
        calls: Sequence[tuple[Sequence[str], Sequence[Argument]]],
    ) -> list[Any]:
        pipeline = self._client.pipeline(transaction=False)
        for keys, arguments in calls:
            pipeline.execute_command(command, script, len(keys), *keys, *arguments)
        return await pipeline.execute(raise_on_error=False)


def _forbids(error: ResponseError) -> bool:
    """Whether the command itself was refused: by an access list, or by a proxy."""
    words = str(error).lower()
    return "noperm" in words or "no permissions" in words or "unknown command" in words
