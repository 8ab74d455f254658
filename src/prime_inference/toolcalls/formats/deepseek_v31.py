"""DeepSeek-V3.1 and V3.2-Exp: a name, a separator, the arguments as JSON.

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{...}<｜tool▁call▁end｜><｜tool▁calls▁end｜>

The bars are U+FF5C and the low lines U+2581; each marker is a token of its own.
"""

from prime_inference.toolcalls.format import Frame
from prime_inference.toolcalls.headed_call import HeadedCall

FORMAT = HeadedCall(
    "deepseek-v3.1",
    "DeepSeek-V3.1, DeepSeek-V3.2-Exp",
    Frame(
        begin="<｜tool▁call▁begin｜>",
        end="<｜tool▁call▁end｜>",
        section_begin="<｜tool▁calls▁begin｜>",
        section_end="<｜tool▁calls▁end｜>",
    ),
    before_arguments="<｜tool▁sep｜>",
)
