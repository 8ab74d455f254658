"""Llama 3.1 and 3.2 with JSON calls: the answer is the call.

    {"name": "NAME", "parameters": {...}}

Several calls are separated by `; `. Without a tag before it, an object is a call if it comes
first in the answer and has both members, or if it names a tool; `<|python_tag|>` may stand
before it.
"""

from prime_inference.toolcalls.format import Frame
from prime_inference.toolcalls.json_call import JsonCall

FORMAT = JsonCall(
    "llama-3",
    "Llama 3.1, Llama 3.2, Llama 3.3",
    Frame(begin='{"name": "', end="}", separator="; "),
    key="parameters",
    tags=("<|python_tag|>",),
    bare=True,
    closing=(";",),
)
