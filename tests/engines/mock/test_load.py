"""The mock engine counts what it works on at a time."""

from __future__ import annotations

import asyncio

import httpx

from prime_inference.engines.mock import MockEngine

BODY = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "stream": True}


async def test_the_most_in_flight_is_remembered_and_asked_for_over_http():
    async with (
        MockEngine(first_token=0.3) as engine,
        httpx.AsyncClient(trust_env=False) as client,
    ):
        asking = [client.post(f"{engine.base_url}/chat/completions", json=BODY) for _ in range(5)]
        await asyncio.gather(*asking)
        root = engine.base_url.removesuffix("/v1")
        load = (await client.get(f"{root}/mock/load")).json()
        assert load == {"in_flight": 0, "most": 5}
        engine.reset()
        assert engine.load.most == 0


async def test_a_request_whose_client_had_gone_already_was_never_in_flight():
    async with MockEngine(first_token=5.0) as engine:
        host, port = engine.base_url.removeprefix("http://").split("/")[0].split(":")
        body = b'{"model":"m","messages":[],"stream":true}'
        for _ in range(5):
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: h\r\n")
            writer.write(b"content-length: %d\r\n\r\n%b" % (len(body), body))
            await writer.drain()
            writer.close()
        async with asyncio.timeout(10):
            while len(engine.requests) < 5 or engine.load.in_flight:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        assert engine.load.most == 0
