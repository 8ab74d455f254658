"""Kimi-K2: a numbered header that is the call's id, the arguments as JSON.

    <|tool_calls_section_begin|><|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{...}
    <|tool_call_end|><|tool_calls_section_end|>

without the line break. The model must see the same id again in its history, so it is passed on.
"""

from prime_inference.toolcalls.format import Frame
from prime_inference.toolcalls.headed_call import HeadedCall

FORMAT = HeadedCall(
    "kimi-k2",
    "Kimi-K2, Kimi-K2.5",
    Frame(
        begin="<|tool_call_begin|>",
        end="<|tool_call_end|>",
        section_begin="<|tool_calls_section_begin|>",
        section_end="<|tool_calls_section_end|>",
    ),
    before_arguments="<|tool_call_argument_begin|>",
    prefix="functions.",
    numbered=True,
)
