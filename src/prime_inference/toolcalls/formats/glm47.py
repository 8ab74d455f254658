"""GLM-4.7 and GLM-5: parameters in tags, without line breaks.

    <tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>

Strings are raw, everything else is JSON. There is no escaping: `&lt;` is those four characters.
"""

from prime_inference.toolcalls.format import Frame
from prime_inference.toolcalls.reader import Header, space
from prime_inference.toolcalls.tag_style import TagStyle
from prime_inference.toolcalls.tagged_call import TaggedCall

# Both generations are read alike: models of either write the other's line breaks at times.
OPENINGS = {
    "<tool_call>": Header(
        "<tool_call>", space("s1"), ("name", r"[^\s<>{}\[\]\"'`=,;()]{1,256}"), space("s2"),
        ("next", "(?=<)"),
    )
}  # fmt: skip
PARAMETERS = (
    Header("<arg_key>", ("name", "[^<]{1,256}"), "</arg_key>", space("s1"), "<arg_value>"),
)
CLOSING = ("</tool_call>",)
STRAY = ("</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")

FORMAT = TaggedCall(
    "glm-4.7",
    "GLM-4.7, GLM-5 and later",
    Frame(begin="<tool_call>", end="</tool_call>"),
    TagStyle(before="<arg_key>", after="</arg_key><arg_value>", close="</arg_value>"),
    openings=OPENINGS,
    parameters=PARAMETERS,
    closing=CLOSING,
    stray=STRAY,
)
