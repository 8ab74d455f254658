"""DeepSeek-V3.2: DSML, parameters in tags that say whether the value is a string.

    <｜DSML｜function_calls>
    <｜DSML｜invoke name="NAME">
    <｜DSML｜parameter name="KEY" string="true|false">VALUE</｜DSML｜parameter>
    </｜DSML｜invoke>
    </｜DSML｜function_calls>

The bars are U+FF5C. Source: the encoding script published with the model.
"""

from prime_inference.toolcalls.format import Frame
from prime_inference.toolcalls.reader import Header, space
from prime_inference.toolcalls.tag_style import TagStyle
from prime_inference.toolcalls.tagged_call import TaggedCall

_SECTION = "<｜DSML｜function_calls>"
_INVOKE = '<｜DSML｜invoke name="'
_PARAMETER = '<｜DSML｜parameter name="'
_NAME = ("name", '[^"\n]{1,256}')

FORMAT = TaggedCall(
    "deepseek-v3.2",
    "DeepSeek-V3.2",
    Frame(
        begin=_INVOKE,
        end="</｜DSML｜invoke>\n",
        section_begin=_SECTION + "\n",
        section_end="</｜DSML｜function_calls>",
    ),
    TagStyle(
        before=_PARAMETER,
        after='" string="true">',
        after_other='" string="false">',
        close="</｜DSML｜parameter>\n",
        ends_value="</｜DSML｜parameter>",
    ),
    behind='">\n',
    openings={
        _SECTION: Header(_SECTION, space("s1"), _INVOKE, _NAME, '">'),
        "<｜DSML｜invoke": Header(_INVOKE, _NAME, '">'),
    },
    parameters=(
        Header(_PARAMETER, _NAME, '" string="', ("string", "[a-z]{1,5}"), '">'),
        Header(_PARAMETER, _NAME, '">'),
    ),
    closing=("</｜DSML｜invoke>",),
    outer={_SECTION: "</｜DSML｜function_calls>"},
)
