"""What the server takes for a request, and how it answers."""

import asyncio
import logging

import pytest

from prime_inference.domain.errors import AuthenticationFailed, NotFound
from prime_inference.wire.http import Reply, Request, header_lines
from tests.wire.peer import GET, HOST, Connect, Serve, echo, post


async def test_a_kept_connection_serves_one_request_after_another(serve: Serve, connect: Connect):
    _, address = await serve(echo)
    peer = await connect(address)
    for body in (b"one", b"", b"three" * 50_000):
        answer = await peer.ask(post(body))
        assert (answer.status, answer.body) == (200, body)
        assert answer.field("connection") is None
        assert answer.field("date") is not None


async def test_pipelined_requests_are_answered_in_order_and_one_at_a_time(
    serve: Serve, connect: Connect
):
    running = 0

    async def slowest_first(request: Request, reply: Reply) -> None:
        nonlocal running
        running += 1
        assert running == 1
        await asyncio.sleep(0.03 / (1 + len(request.body)))
        running -= 1
        reply.send(200, [], request.body)

    _, address = await serve(slowest_first)
    peer = await connect(address)
    bodies = [b"x" * size for size in range(12)]
    stream = b"".join(post(body) for body in bodies)
    for start in range(0, len(stream), 100):
        await peer.send(stream[start : start + 100])
    assert [(await peer.answer()).body for _ in bodies] == bodies


async def test_a_request_arrives_whole_however_it_is_cut(serve: Serve, connect: Connect):
    _, address = await serve(echo)
    peer = await connect(address)
    for cut in range(1, len(post(b"hello"))):
        await peer.send(post(b"hello")[:cut])
        await asyncio.sleep(0)
        assert (await peer.ask(post(b"hello")[cut:])).body == b"hello"


async def test_chunked_bodies_are_joined_and_their_extensions_and_trailers_dropped(
    serve: Serve, connect: Connect
):
    seen: list[Request] = []

    async def keep(request: Request, reply: Reply) -> None:
        seen.append(request)
        reply.send(200, [], request.body)

    _, address = await serve(keep)
    peer = await connect(address)
    answer = await peer.ask(
        b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: Chunked\r\n\r\n"
        b"3;name=value\r\nabc\r\nA\r\n0123456789\r\n0\r\nAuthorization: Bearer x\r\n\r\n"
    )
    assert answer.body == b"abc0123456789"
    assert seen[0].header(b"authorization") is None
    assert (await peer.ask(GET)).status == 200


async def test_a_client_that_asks_first_is_told_to_go_on(serve: Serve, connect: Connect):
    _, address = await serve(echo)
    peer = await connect(address)
    head, body = post(b"hello", b"Expect: 100-Continue").split(b"\r\n\r\n")
    assert (await peer.ask(head + b"\r\n\r\n")).status == 100
    assert (await peer.ask(body)).body == b"hello"


async def test_a_pipelined_request_that_asks_first_is_told_to_go_on_in_its_turn(
    serve: Serve, connect: Connect
):
    go = asyncio.Event()

    async def first_waits(request: Request, reply: Reply) -> None:
        if not request.body:
            await go.wait()
        reply.send(200, [], request.body)

    _, address = await serve(first_waits)
    peer = await connect(address)
    head, body = post(b"hello", b"Expect: 100-continue").split(b"\r\n\r\n")
    await peer.send(GET + head + b"\r\n\r\n")
    await asyncio.sleep(0.02)
    go.set()
    assert [(await peer.answer()).status for _ in range(2)] == [200, 100]
    assert (await peer.ask(body)).body == b"hello"


async def test_http_1_0_is_closed_unless_both_sides_keep_it(serve: Serve, connect: Connect):
    _, address = await serve(echo)
    peer = await connect(address)
    kept = await peer.ask(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
    assert kept.field("connection") == "keep-alive"
    last = await peer.ask(b"GET / HTTP/1.0\r\n\r\n")
    assert last.field("connection") == "close"
    assert await peer.ended()


async def test_a_stream_to_http_1_0_is_unframed_and_ends_with_the_connection(
    serve: Serve, connect: Connect
):
    async def stream(request: Request, reply: Reply) -> None:
        reply.start(200, [])
        reply.write(b"one")
        reply.write(b"two")
        reply.end()

    _, address = await serve(stream)
    peer = await connect(address)
    answer = await peer.ask(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
    assert answer.field("transfer-encoding") is None
    assert answer.body == b"onetwo"


async def test_connection_close_ends_the_connection_and_what_follows_is_not_served(
    serve: Serve, connect: Connect
):
    served: list[str] = []

    async def count(request: Request, reply: Reply) -> None:
        served.append(request.path)
        reply.send(200, [], b"")

    _, address = await serve(count)
    peer = await connect(address)
    answer = await peer.ask(b"GET /a HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n" + GET)
    assert answer.field("connection") == "close"
    assert await peer.ended()
    assert served == ["/a"]


async def test_an_answer_to_head_has_the_length_but_no_body(serve: Serve, connect: Connect):
    async def both(request: Request, reply: Reply) -> None:
        if request.path == "/whole":
            reply.send(200, [], b"hello")
        else:
            reply.start(200, [])
            reply.write(b"hello")
            reply.end()

    _, address = await serve(both)
    peer = await connect(address)
    await peer.send(b"HEAD /whole HTTP/1.1\r\n" + HOST + b"\r\n")
    assert (await peer.answer(to_head=True)).field("content-length") == "5"
    await peer.send(b"HEAD /stream HTTP/1.1\r\n" + HOST + b"\r\n")
    assert (await peer.answer(to_head=True)).field("transfer-encoding") == "chunked"
    assert (await peer.ask(b"GET /whole HTTP/1.1\r\n" + HOST + b"\r\n")).body == b"hello"


async def test_an_answer_without_content_has_no_length(serve: Serve, connect: Connect):
    async def nothing(request: Request, reply: Reply) -> None:
        reply.send(204, [], b"")

    _, address = await serve(nothing)
    peer = await connect(address)
    for _ in range(2):
        answer = await peer.ask(GET)
        assert (answer.status, answer.field("content-length")) == (204, None)


@pytest.mark.parametrize("framing", [b"Content-Length: 5", b"Transfer-Encoding: chunked"])
async def test_an_upgrade_is_ignored_and_its_body_read(
    serve: Serve, connect: Connect, framing: bytes
):
    seen: list[Request] = []

    async def keep(request: Request, reply: Reply) -> None:
        seen.append(request)
        reply.send(200, [], request.body)

    _, address = await serve(keep)
    peer = await connect(address)
    body = b"hello" if framing.startswith(b"Content") else b"5\r\nhello\r\n0\r\n\r\n"
    request = (
        b"POST /x?q HTTP/1.1\r\n" + HOST + b"Connection: Upgrade, HTTP2-Settings\r\n"
        b"Upgrade: h2c\r\nHTTP2-Settings: AAA\r\nX-Mine: 1\r\n" + framing + b"\r\n\r\n" + body
    )
    for cut in (0, 10, len(request) - len(body), len(request) - 2):
        await peer.send(request[:cut])
        await asyncio.sleep(0)
        assert (await peer.ask(request[cut:])).body == b"hello"
    assert all((x.path, x.query, x.header(b"x-mine")) == ("/x", "q", b"1") for x in seen)
    await peer.send(request * 20)
    assert [(await peer.answer()).body for _ in range(20)] == [b"hello"] * 20


async def test_a_target_is_split_but_not_decoded(serve: Serve, connect: Connect):
    seen: list[tuple[str, str]] = []

    async def keep(request: Request, reply: Reply) -> None:
        seen.append((request.path, request.query))
        reply.send(200, [], b"")

    _, address = await serve(keep)
    peer = await connect(address)
    targets = [b"/a/b?c=d?e", b"/%2e%2E/%00", b"//evil/x", b"http://other/p?q=1", b"http://other"]
    for target in targets:
        await peer.ask(b"GET %b HTTP/1.1\r\n%b\r\n" % (target, HOST))
    await peer.ask(b"OPTIONS * HTTP/1.1\r\n" + HOST + b"\r\n")
    assert seen == [
        ("/a/b", "c=d?e"),
        ("/%2e%2E/%00", ""),
        ("//evil/x", ""),
        ("/p", "q=1"),
        ("/", ""),
        ("*", ""),
    ]


async def test_a_head_check_refuses_before_the_body_is_sent(serve: Serve, connect: Connect):
    served: list[Request] = []

    async def keep(request: Request, reply: Reply) -> None:
        served.append(request)
        reply.send(200, [], b"")

    def check(request: Request) -> None:
        if request.header(b"authorization") is None:
            raise AuthenticationFailed("No API key.")

    _, address = await serve(keep, check_head=check)
    peer = await connect(address)
    head = post(b"x" * 1000, b"Expect: 100-continue").partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
    answer = await peer.ask(head)
    assert (answer.status, answer.field("connection")) == (401, "close")
    assert await peer.ended()
    assert not served
    peer = await connect(address)
    assert (await peer.ask(post(b"x", b"Authorization: Bearer k"))).status == 200


async def test_a_refusal_waits_for_the_answers_before_it(serve: Serve, connect: Connect):
    async def slow(request: Request, reply: Reply) -> None:
        await asyncio.sleep(0.02)
        reply.send(200, [], request.body)

    _, address = await serve(slow)
    peer = await connect(address)
    await peer.send(post(b"one") + post(b"two") + b"nonsense\r\n\r\n" + post(b"three"))
    answers = [await peer.answer() for _ in range(3)]
    assert [x.status for x in answers] == [200, 200, 501]
    assert [x.body for x in answers[:2]] == [b"one", b"two"]
    assert answers[1].field("connection") is None
    assert answers[2].field("connection") == "close"
    assert await peer.ended()


async def test_a_handler_that_raises_an_api_error_has_answered(serve: Serve, connect: Connect):
    async def missing(request: Request, reply: Reply) -> None:
        raise NotFound("No such path.")

    _, address = await serve(missing)
    peer = await connect(address)
    for _ in range(2):
        answer = await peer.ask(GET)
        assert (answer.status, answer.body) == (404, b"No such path.")


async def test_a_handler_that_fails_before_it_answers_is_a_500_that_says_nothing(
    serve: Serve, connect: Connect, caplog: pytest.LogCaptureFixture
):
    async def fail(request: Request, reply: Reply) -> None:
        raise ValueError("the secret")

    _, address = await serve(fail)
    peer = await connect(address)
    for _ in range(2):
        answer = await peer.ask(GET)
        assert answer.status == 500
        assert b"secret" not in answer.body
    assert "the secret" in caplog.text


async def test_a_handler_that_returns_without_an_answer_is_a_500(
    serve: Serve, connect: Connect, caplog: pytest.LogCaptureFixture
):
    async def nothing(request: Request, reply: Reply) -> None:
        pass

    _, address = await serve(nothing)
    peer = await connect(address)
    assert (await peer.ask(GET)).status == 500
    assert "without completing its answer" in caplog.text


@pytest.mark.parametrize("ending", ["raises", "returns", "aborts"])
@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
async def test_a_stream_that_is_not_completed_never_looks_complete(
    serve: Serve, connect: Connect, caplog: pytest.LogCaptureFixture, ending: str, version: bytes
):
    async def stop_early(request: Request, reply: Reply) -> None:
        reply.start(200, [])
        reply.write(b"half of i")
        await asyncio.sleep(0.02)
        if ending == "raises":
            raise ValueError
        if ending == "aborts":
            reply.abort()

    _, address = await serve(stop_early)
    peer = await connect(address)
    await peer.send(b"GET / HTTP/%b\r\n%b\r\n" % (version, HOST))
    with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
        await peer.answer()


async def test_a_handler_that_fails_after_its_answer_takes_nothing_from_it(
    serve: Serve, connect: Connect, caplog: pytest.LogCaptureFixture
):
    async def fail_late(request: Request, reply: Reply) -> None:
        reply.send(200, [], b"x" * 2_000_000)
        raise ValueError("late")

    _, address = await serve(fail_late)
    peer = await connect(address)
    for _ in range(2):
        assert (await peer.ask(GET)).body == b"x" * 2_000_000
    assert "late" in caplog.text


@pytest.mark.parametrize(
    "field", [(b"x-a", b"1\r\nset-cookie: a"), (b"x-a\r\nx", b"1"), (b"x", b"a\nb"), (b"x", b"\0")]
)
@pytest.mark.parametrize("streamed", [False, True])
async def test_no_header_of_a_handler_can_add_another(
    serve: Serve,
    connect: Connect,
    caplog: pytest.LogCaptureFixture,
    field: tuple[bytes, bytes],
    streamed: bool,
):
    async def inject(request: Request, reply: Reply) -> None:
        if streamed:
            reply.start(200, [field])
        else:
            reply.send(200, [field], b"")

    _, address = await serve(inject)
    peer = await connect(address)
    answer = await peer.ask(GET)
    assert answer.status == 500
    assert {name for name, _ in answer.fields} == {"date", "x-error", "content-length"}
    assert "CR, LF or NUL" in caplog.text


async def test_header_lines_made_beforehand_are_written_as_they_are(serve: Serve, connect: Connect):
    lines = header_lines([(b"x-a", b"1"), (b"x-b", b"2")])

    async def answer(request: Request, reply: Reply) -> None:
        if request.path == "/whole":
            return reply.send(200, lines, b"")
        reply.start(200, lines)
        return reply.end()

    _, address = await serve(answer)
    peer = await connect(address)
    for path in (b"/whole", b"/stream"):
        answered = await peer.ask(b"GET %b HTTP/1.1\r\n%b\r\n" % (path, HOST))
        assert (answered.field("x-a"), answered.field("x-b")) == ("1", "2")


async def test_misuse_of_a_reply_is_an_error_of_the_handler(
    serve: Serve, connect: Connect, caplog: pytest.LogCaptureFixture
):
    async def misuse(request: Request, reply: Reply) -> None:
        if request.path == "/write-first":
            reply.write(b"x")
        elif request.path == "/end-first":
            reply.end()
        elif request.path == "/send-twice":
            reply.send(200, [], b"")
            reply.send(200, [], b"")
        else:
            reply.start(200, [])
            reply.end()
            reply.write(b"x")

    caplog.set_level(logging.ERROR)
    _, address = await serve(misuse)
    peer = await connect(address)
    paths = {b"/write-first": 500, b"/end-first": 500, b"/send-twice": 200, b"/write-late": 200}
    for path, status in paths.items():
        assert (await peer.ask(b"GET %b HTTP/1.1\r\n%b\r\n" % (path, HOST))).status == status
    assert caplog.text.count("AssertionError") == len(paths)
