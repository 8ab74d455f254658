"""Hermes, Qwen2.5 and Qwen3: a JSON object in a tag.

<tool_call>
{"name": "NAME", "arguments": {...}}
</tool_call>
"""

from prime_inference.toolcalls.format import Frame
from prime_inference.toolcalls.json_call import JsonCall

FORMAT = JsonCall(
    "hermes",
    "Hermes 2 and later, Qwen2.5, Qwen3",
    Frame(begin="<tool_call>", end="</tool_call>", separator="\n"),
    key="arguments",
    before='\n{"name": "',
    behind="}\n",
    tags=("<tool_call>",),
    closing=("</tool_call>",),
    stray=("</tool_call>",),
)
