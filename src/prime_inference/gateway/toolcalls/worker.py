"""Validates arguments in a process of its own: some schemas are endless work.

Run as `python -m prime_inference.gateway.toolcalls.worker`. Reads jobs on standard input and
writes verdicts to standard output, one after the other, each a length in four bytes and that
much MessagePack. It ends when its input does, and the kernel ends it when one job takes more
than `JOB_SECONDS` of CPU, whatever the code is doing then.
"""

from __future__ import annotations

import resource
import signal
import sys
from functools import lru_cache

import msgspec
from msgspec import Struct

from prime_inference.toolcalls.tools import Tool
from prime_inference.toolcalls.validate import Problem, check_arguments, fault

JOB_SECONDS = 1.0  # usual calls take microseconds; what takes longer is meant to
MEMORY_BYTES = 1024 * 1024 * 1024  # arguments of 20 MB take a tenth of it
LENGTH_BYTES = 4


class Job(Struct, frozen=True):
    """Calls of one answer: index of the schema, arguments as JSON text.

    `detailed` asks for all that is wrong with each, not only for its bucket.
    """

    schemas: list[bytes]
    calls: list[tuple[int, str]]
    detailed: bool = False


jobs = msgspec.msgpack.Decoder(Job)
verdicts = msgspec.msgpack.Decoder(list[str])  # buckets; an empty text is a valid call
details = msgspec.msgpack.Decoder(list[list[Problem]])  # of a detailed job


def framed(message: object) -> bytes:
    body = msgspec.msgpack.encode(message)
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


@lru_cache(maxsize=256)
def _tool(schema: bytes) -> Tool:
    return Tool("", msgspec.json.decode(schema))


def judge(job: Job) -> list[str] | list[tuple[Problem, ...]]:
    """The bucket of each call, or all that is wrong with it."""
    if job.detailed:
        return [check_arguments(text, _tool(job.schemas[schema])) for schema, text in job.calls]
    return [_bucket(_tool(job.schemas[schema]), text) for schema, text in job.calls]


def _bucket(tool: Tool, arguments: str) -> str:
    found = fault(arguments, tool)
    return "" if found is None else found.value


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is the gateway's to answer
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    while length := source.read(LENGTH_BYTES):
        body = source.read(int.from_bytes(length, "big"))
        signal.setitimer(signal.ITIMER_PROF, JOB_SECONDS)  # SIGPROF is left to the kernel
        found = judge(jobs.decode(body))
        signal.setitimer(signal.ITIMER_PROF, 0)
        sink.write(framed(found))
        sink.flush()


if __name__ == "__main__":
    main()
