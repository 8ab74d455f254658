"""Qwen3-Coder and Qwen3.5: a function tag in a call tag, values on lines of their own.

    <tool_call>
    <function=NAME>
    <parameter=KEY>
    VALUE
    </parameter>
    </function>
    </tool_call>

One line break on either side of a value belongs to its tags. The template prints scalars with
Python's str(): True, False and None. Models leave the outer tag away at times.
"""

from prime_inference.toolcalls.format import Frame
from prime_inference.toolcalls.reader import Header, space
from prime_inference.toolcalls.tag_style import TagStyle
from prime_inference.toolcalls.tagged_call import TaggedCall

_NAME = ("name", r"[^\s<>{}\[\]\"'`,;()]{1,256}")

FORMAT = TaggedCall(
    "qwen3-coder",
    "Qwen3-Coder, Qwen3.5 and later",
    Frame(begin="<tool_call>", end="</tool_call>", separator="\n"),
    TagStyle(
        before="<parameter=",
        after=">\n",
        close="\n</parameter>\n",
        ends_value="</parameter>",
        python_words=True,
    ),
    before="\n<function=",
    behind=">\n",
    last="</function>\n",
    openings={
        "<tool_call>": Header("<tool_call>", space("s1"), "<function=", _NAME, ">"),
        "<function=": Header("<function=", _NAME, ">"),
    },
    parameters=(Header("<parameter=", ("name", "[^>\n]{1,256}"), ">"),),
    closing=("</function>", "</tool_call>"),
    outer={"<tool_call>": "</tool_call>"},
    line="\n",
)
