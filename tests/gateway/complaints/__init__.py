"""What users of other gateways complained about, as tests of ours.

Each test names the right behaviour and cites the complaints as repository#number. The
numbers on the left are those of the project's list of complaints, 1 to 45; numbers that
are missing were never given.

    1, 4      an event split over two chunks         test_stream_complaints
    2         line ends, tails and the cap on events test_stream_complaints
    3         usage at every split point             tests/wire/openai/test_stream.py
    6         a body that cannot be decoded          test_stream_complaints
    8         UTF-8 split over chunks                test_stream_complaints
    10 - 13   usage: shape, place, null, unasked     test_stream_complaints
    15 - 17   cut streams, errors in band, replay    test_stream_complaints
    20, 21    one retry rule; an error is terminal   test_stream_complaints
    23, 24    separate clocks; keep-alive            test_stream_complaints
    26, 27    the error event; strings in errors     test_stream_complaints
    30, 35    finish_reason: null until the last     test_stream_complaints
    31, 32    indices of parallel tool calls         test_tool_call_complaints
    34, 37    tool_calls as finish reason; all calls test_tool_call_complaints
    39, 41, 42 a client that leaves                  test_cancellation_complaints
    43 - 45   before the first token; retries; leaks test_cancellation_complaints

Do not apply:

    18  continuation by assistant prefill: an answer is not continued elsewhere yet; the
        original error is reported (tests/gateway/test_failover.py)
    19  a request flag that turns fallbacks off: there is no such flag
    28  `usage: null` in events of the Responses API: that API is not served
    36  Anthropic's stop_reason: that dialect is not served
    41  in part: there is no middleware here that could hide a disconnect
    43  in part: Dynamo itself is not run here, an engine that sees the disconnect is
"""
