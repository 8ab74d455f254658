"""GLM-4.5 and GLM-4.6: parameters in tags, each on a line of its own.

<tool_call>NAME
<arg_key>KEY</arg_key>
<arg_value>VALUE</arg_value>
</tool_call>
"""

from prime_inference.toolcalls.format import Frame
from prime_inference.toolcalls.formats.glm47 import CLOSING, OPENINGS, PARAMETERS, STRAY
from prime_inference.toolcalls.tag_style import TagStyle
from prime_inference.toolcalls.tagged_call import TaggedCall

FORMAT = TaggedCall(
    "glm-4.5",
    "GLM-4.5, GLM-4.6",
    Frame(begin="<tool_call>", end="</tool_call>", separator="\n"),
    TagStyle(
        before="<arg_key>",
        after="</arg_key>\n<arg_value>",
        close="</arg_value>\n",
        ends_value="</arg_value>",
    ),
    behind="\n",
    openings=OPENINGS,
    parameters=PARAMETERS,
    closing=CLOSING,
    stray=STRAY,
)
