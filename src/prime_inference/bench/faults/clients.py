"""Clients that are slow, that leave, and too many of them."""

from __future__ import annotations

import asyncio
import json
import socket
import time

from prime_inference.bench.faults.client import MESSAGES, MODEL
from prime_inference.bench.faults.replica import Clocks, Replica
from prime_inference.bench.faults.scenario import Scenario, Scene, judge, judge_all
from prime_inference.bench.faults.scorecard import Finding
from prime_inference.bench.faults.stage import EXPECTED, Setting, eventually, staged
from prime_inference.engines.mock import expected_text

SMALL_BUFFER = 4096  # bytes the kernel holds for a client that does not read
LONG_TOKENS = 20_000  # of an answer that no kernel buffer holds: 4 MB of events


async def slow_client(scene: Scene) -> Finding:
    """A client that reads slowly gets its answer whole; it costs the gateway no memory.

    Its answer is 4 MB of events; the idle clock of 2 s does not run while it is behind.
    """
    finding = Finding()
    setting = Setting(
        slots=256, pace=0.0, answer_tokens=LONG_TOKENS, clocks=Clocks(idle=2.0), warm_up=False
    )
    async with staged(scene.folder, setting) as stage:
        for _ in range(4):  # its caches are warm, and so is its memory
            await stage.ask()
        before = stage.gateway.memory_mib()
        began = time.monotonic()
        reader, writer = await _post(stage.gateway, receive_buffer=SMALL_BUFFER)
        await asyncio.sleep(4)  # twice the idle clock
        held = stage.gateway.memory_mib() - before
        others = await asyncio.gather(*(stage.ask(max_tokens=5) for _ in range(10)))
        async with asyncio.timeout(60):
            raw = await reader.read(-1)
        writer.close()
        text, done = _text_of(raw)
        finding.seconds = time.monotonic() - began
        whole = text == expected_text(MESSAGES, length=LONG_TOKENS) and done
        finding.rescued = whole
        finding.outcome = "complete" if whole else f"{len(text.split())} of {LONG_TOKENS} words"
        finding.attempts = stage.attempts
        finding.check("whole_text", whole, finding.outcome)
        finding.check("memory", held < 4, f"{held:.1f} MiB more while it was behind")
        served = sum(answer.success for answer in others)
        finding.check("others_served", served == len(others), f"{served} of {len(others)}")
    return finding


async def clients_leave(scene: Scene) -> Finding:
    """1,000 clients that leave at once: engines stop within 2 s, the next client is served."""
    finding = Finding()
    count = 200 if scene.quick else 1000
    setting = Setting(slots=4096, pace=0.2, first_token=0.02, answer_tokens=600)
    async with staged(scene.folder, setting) as stage:
        files = stage.gateway.open_files()
        streams = []
        for _ in range(count // 50):
            streams += await asyncio.gather(*(_post(stage.gateway) for _ in range(50)))
        await asyncio.gather(*(reader.readuntil(b"data:") for reader, _ in streams))
        engines = [deployment.engine for deployment in stage.deployments.values()]
        there = sum(engine.load.in_flight for engine in engines)
        for _, writer in streams:
            writer.transport.abort()
        gone = await eventually(lambda: not any(e.load.in_flight for e in engines), 10)
        answer = await stage.ask(max_tokens=5)
        judge(finding, answer, expected_text(MESSAGES, 5, length=600))
        finding.outcome = f"{count} left, next {finding.outcome}"
        finding.attempts = stage.attempts
        finding.seconds = gone or 10.0
        finding.check("all_were_served", there >= count, f"{there} in flight, hedges among them")
        found = "still working" if gone is None else f"after {gone:.1f} s"
        finding.check("engines_stop", gone is not None and gone < 2, found)
        finding.check("next_is_served", answer.seconds < 3, f"{answer.seconds:.1f} s")
        await eventually(lambda: stage.gateway.open_files() <= files + 80, 5)
        left = stage.gateway.open_files() - files
        finding.check("no_files_leak", left <= 80, f"{left} more open files")
    return finding


async def out_of_files(scene: Scene) -> Finding:
    """A gateway out of file descriptors recovers by itself when its clients have gone.

    It may hold 128 files; 300 clients want two each. Who is answered is answered truly, and
    no engine is taken for dead because the gateway had no file left to reach it with.
    """
    finding = Finding()
    setting = Setting(slots=4096, first_token=0.02, most_files=128)
    async with staged(scene.folder, setting) as stage:
        crowd = [asyncio.create_task(stage.ask()) for _ in range(300)]
        await asyncio.wait(crowd, timeout=20)
        used = stage.gateway.cpu_seconds()
        for task in crowd:
            task.cancel()
        ended = await asyncio.gather(*crowd, return_exceptions=True)
        answers = [answer for answer in ended if not isinstance(answer, BaseException)]
        served = [answer for answer in answers if answer.success]
        await asyncio.sleep(1)
        used = stage.gateway.cpu_seconds() - used
        after = [await stage.ask() for _ in range(5)]
        judge_all(finding, after)
        finding.outcome = f"{len(served)}/300, then {finding.outcome}"
        finding.attempts = stage.attempts
        false = [a for a in answers if a.outcome(EXPECTED) not in ("complete", "error")]
        finding.check("no_false_answers", not false, f"{len(false)} cut or wrong look whole")
        finding.check("serves_what_it_can", len(served) >= 30, f"{len(served)} of 300 served")
        finding.check("no_busy_loop", used < 0.5, f"{used:.2f} s of CPU in the second after")
    return finding


async def _post(
    gateway: Replica, *, receive_buffer: int = 0
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send a request for a stream on a connection of its own."""
    host, port = gateway.base_url.removeprefix("http://").partition("/")[0].split(":")
    sock = socket.socket()
    if receive_buffer:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, (host, int(port)))
    reader, writer = await asyncio.open_connection(sock=sock, limit=receive_buffer or 2**16)
    body = json.dumps({"model": MODEL, "messages": MESSAGES, "stream": True}).encode()
    writer.write(
        f"POST /api/v1/chat/completions HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n"
        f"authorization: Bearer {gateway.key}\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        + body
    )
    await writer.drain()
    return reader, writer


def _text_of(raw: bytes) -> tuple[str, bool]:
    """The text of a chunked stream as it came over the wire, and whether it ended by [DONE]."""
    head, _, rest = raw.partition(b"\r\n\r\n")
    body = bytearray()
    if b"chunked" not in head.lower():
        body += rest
        rest = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size or b"0", 16)
        body += rest[:length]
        rest = rest[length + 2 :]
    events = [line[5:].strip() for line in bytes(body).split(b"\n") if line.startswith(b"data:")]
    chunks = [json.loads(event) for event in events if event != b"[DONE]"]
    pieces = [c["delta"].get("content") or "" for chunk in chunks for c in chunk["choices"]]
    return "".join(pieces), bool(events) and events[-1] == b"[DONE]"


CLIENTS = (
    Scenario("F12", "Slow client", slow_client),
    Scenario("F13", "1,000 clients leave at once", clients_leave, heavy=True),
    Scenario("F14", "File descriptors run out", out_of_files, heavy=True),
)
