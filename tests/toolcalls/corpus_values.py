"""Reports of values that came out as something else, with relatives of each."""

# ruff: noqa: E501  (one case, one line: the table is read downwards)

from __future__ import annotations

from tests.toolcalls.case import (
    Case,
    case,
    coder,
    deepseek,
    deepseek_call,
    dsml,
    glm,
    glm45,
    hermes,
    kimi,
    kimi_call,
    llama,
)

S = {"text": "string"}
NULLABLE = {"v": ["string", "null"]}
ANY_OF_NULL = {"v": {"anyOf": [{"type": "string"}, {"type": "null"}]}}
INTEGER_OR_NULL = {"v": ["integer", "null"]}
CITY = {"location": {"anyOf": [
    {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    {"type": "object", "properties": {"zip": {"type": "string"}}, "required": ["zip"]},
]}}  # fmt: skip
POINT = {"$defs": {"P": {"type": "object", "properties": {"x": {"type": "integer"}}}}}
TREE = {"$defs": {"T": {
    "type": "object",
    "properties": {"v": {"type": "integer"}, "sub": {"type": "array", "items": {"$ref": "#/$defs/T"}}},
}}}  # fmt: skip
CODE = "    if x:\n        return 1\n"

ENTITIES: list[Case] = [
    # Text in tags is not XML. Nothing is unescaped, once or twice.
    case(
        1,
        "ai-dynamo/frontend-crates#249",
        "glm-4.7",
        S,
        glm(text="&lt;tag&gt; &amp;"),
        {"text": "&lt;tag&gt; &amp;"},
    ),
    case(
        1,
        "the same with numbers",
        "glm-4.5",
        S,
        glm45(text="&#60;&#x3c;&apos;"),
        {"text": "&#60;&#x3c;&apos;"},
    ),
    case(
        1,
        "the same in Qwen's tags",
        "qwen3-coder",
        S,
        coder(text="a &lt; b &amp;&amp; c"),
        {"text": "a &lt; b &amp;&amp; c"},
    ),
    case(
        1, "the same in DSML", "deepseek-v3.2", S, dsml(text="&lt;/p&gt;"), {"text": "&lt;/p&gt;"}
    ),
    case(
        1,
        "the same inside JSON",
        "hermes",
        S,
        hermes({"text": "&quot;&lt;"}),
        {"text": "&quot;&lt;"},
    ),
    case(
        2,
        "ai-dynamo/frontend-crates#249",
        "glm-4.7",
        {"o": "object"},
        glm(o='{"text":"&quot;"}'),
        {"o": {"text": "&quot;"}},
    ),
    case(
        2,
        "an array",
        "glm-4.7",
        {"o": "array"},
        glm(o='["&quot;", "&amp;quot;"]'),
        {"o": ["&quot;", "&amp;quot;"]},
    ),
    case(
        2,
        "an object in Qwen's tags",
        "qwen3-coder",
        {"o": "object"},
        coder(o='{"a": "&lt;"}'),
        {"o": {"a": "&lt;"}},
    ),
    case(
        2,
        "an object in DSML",
        "deepseek-v3.2",
        {"o": "object"},
        dsml(o='={"a": "&quot;"}'),
        {"o": {"a": "&quot;"}},
    ),
    case(4, "dynamo glm47 v1", "glm-4.7", S, glm(text="&amp;quot;"), {"text": "&amp;quot;"}),
    case(4, "thrice", "glm-4.7", S, glm(text="&amp;amp;lt;"), {"text": "&amp;amp;lt;"}),
    case(4, "in Qwen's tags", "qwen3-coder", S, coder(text="&amp;quot;"), {"text": "&amp;quot;"}),
    case(4, "half an entity", "glm-4.5", S, glm45(text="&amp"), {"text": "&amp"}),
]

NULLS: list[Case] = [
    # Where a schema admits null, `null` is null; where it does not, it is text.
    case(6, "ai-dynamo/frontend-crates#248", "glm-4.7", INTEGER_OR_NULL, glm(v="null"), {"v": None}),
    case(6, "the integer", "glm-4.7", INTEGER_OR_NULL, glm(v="42"), {"v": 42}),
    case(6, "as anyOf", "glm-4.5", {"v": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}, glm45(v="null"), {"v": None}),
    case(6, "as nullable", "qwen3-coder", {"v": {"type": "integer", "nullable": True}}, coder(v="null"), {"v": None}),
    case(6, "as enum", "glm-4.7", {"v": {"enum": [1, 2, None]}}, glm(v="2"), {"v": 2}),
    case(7, "sgl-project/sglang#39136", "glm-4.7", NULLABLE, glm(v="null"), {"v": None}),
    case(7, "a string that is longer", "glm-4.7", NULLABLE, glm(v="nullable"), {"v": "nullable"}),
    case(7, "a string that is shorter", "glm-4.7", NULLABLE, glm(v="nul"), {"v": "nul"}),
    case(7, "spaces make it a string", "glm-4.7", NULLABLE, glm(v=" null"), {"v": " null"}),
    case(7, "Python's word where templates write it", "qwen3-coder", NULLABLE, coder(v="None"), {"v": None}),
    case(7, "Python's word where they do not", "glm-4.7", NULLABLE, glm(v="None"), {"v": "None"}),
    case(8, "ai-dynamo/frontend-crates#251", "glm-4.7", {"v": "string"}, glm(v="null"), {"v": "null"}),
    case(8, "in Qwen's tags", "qwen3-coder", {"v": "string"}, coder(v="null"), {"v": "null"}),
    case(8, "None", "qwen3-coder", {"v": "string"}, coder(v="None"), {"v": "None"}),
    case(8, "in DSML, marked as a string", "deepseek-v3.2", {"v": "string"}, dsml(v="null"), {"v": "null"}),
    case(8, "empty", "glm-4.7", {"v": "string"}, glm(v=""), {"v": ""}),
    case(10, "sgl-project/sglang#27640", "glm-4.7", {"v": ["boolean", "null"]}, glm(v="false"), {"v": False}),
    case(10, "null", "glm-4.7", {"v": ["boolean", "null"]}, glm(v="null"), {"v": None}),
    case(10, "Python's word", "qwen3-coder", {"v": ["boolean", "null"]}, coder(v="False"), {"v": False}),
    case(10, "in DSML", "deepseek-v3.2", {"v": ["boolean", "null"]}, dsml(v="=false"), {"v": False}),
    case(11, "vllm-project/vllm#40195", "glm-4.7", {"sender": {"anyOf": [{"type": "string"}, {"type": "null"}]}}, glm(sender="Smith"), {"sender": "Smith"}),
    case(11, "null after all", "glm-4.7", ANY_OF_NULL, glm(v="null"), {"v": None}),
    case(11, "in Qwen's tags", "qwen3-coder", ANY_OF_NULL, coder(v="Smith\nJones"), {"v": "Smith\nJones"}),
    case(11, "in the other order", "glm-4.5", {"v": {"anyOf": [{"type": "null"}, {"type": "string"}]}}, glm45(v="nul"), {"v": "nul"}),
    case(13, "vllm-project/vllm-ascend#12261", "glm-4.7", {"hvd": {"anyOf": [{"type": "string"}, {"type": "null"}]}}, glm(hvd="Pura90"), {"hvd": "Pura90"}),
    case(13, "that begins like a number", "glm-4.7", {"v": ["string", "integer"]}, glm(v="90Pura"), {"v": "90Pura"}),
    case(13, "that begins like null", "glm-4.7", NULLABLE, glm(v="none of it"), {"v": "none of it"}),
    case(13, "that begins like an object", "glm-4.7", {"v": ["string", "object"]}, glm(v="{x"), {"v": "{x"}),
    case(14, "vllm-project/vllm#39691", "glm-4.7", {"v": {"enum": ["none", "nil", "all"]}}, glm(v="none"), {"v": "none"}),
    case(14, "nil", "glm-4.7", {"v": {"enum": ["none", "nil", "all"]}}, glm(v="nil"), {"v": "nil"}),
    case(14, "null as a word of an enum", "glm-4.7", {"v": {"enum": ["null", "x"]}}, glm(v="null"), {"v": "null"}),
    case(14, "true as a constant string", "qwen3-coder", {"v": {"const": "True"}}, coder(v="True"), {"v": "True"}),
    case(15, "vllm-project/vllm#38996", "qwen3-coder", {"v": {"anyOf": [{"type": "object"}, {"type": "null"}]}}, coder(v="None"), {"v": None}),
    case(15, "null", "qwen3-coder", {"v": {"anyOf": [{"type": "object"}, {"type": "null"}]}}, coder(v="null"), {"v": None}),
    case(15, "a nullable array", "qwen3-coder", {"v": ["array", "null"]}, coder(v="None"), {"v": None}),
    case(15, "through a reference", "qwen3-coder", {"v": {"anyOf": [{"$ref": "#/$defs/P"}, {"type": "null"}]}}, coder(v="None"), {"v": None}, schema=POINT),
]  # fmt: skip

NESTING: list[Case] = [
    case(16, "vllm-project/vllm#46924", "qwen3-coder", {"p": {"$ref": "#/$defs/P"}}, coder(p='{"x": 1}'), {"p": {"x": 1}}, schema=POINT),
    case(16, "by an older name", "glm-4.7", {"p": {"$ref": "#/definitions/P"}}, glm(p='{"x": 1}'), {"p": {"x": 1}}, schema={"definitions": POINT["$defs"]}),
    case(16, "by an anchor", "glm-4.7", {"p": {"$ref": "#pt"}}, glm(p='{"x": 1}'), {"p": {"x": 1}}, schema={"$defs": {"P": {"$anchor": "pt", "type": "object"}}}),
    case(16, "to a string", "glm-4.7", {"p": {"$ref": "#/$defs/S"}}, glm(p='{"x": 1}'), {"p": '{"x": 1}'}, schema={"$defs": {"S": {"type": "string"}}}),
    case(16, "through allOf", "qwen3-coder", {"p": {"allOf": [{"$ref": "#/$defs/P"}]}}, coder(p='{"x": 1}'), {"p": {"x": 1}}, schema=POINT),
    case(18, "vllm-project/vllm#36032", "qwen3-coder", CITY, coder(location='{"city": "Paris"}'), {"location": {"city": "Paris"}}),
    case(18, "the other branch", "glm-4.7", CITY, glm(location='{"zip": "75001"}'), {"location": {"zip": "75001"}}),
    case(18, "as oneOf", "glm-4.7", {"v": {"oneOf": [{"type": "array"}, {"type": "object"}]}}, glm(v='[{"a": null}]'), {"v": [{"a": None}]}),
    case(18, "beside a string", "glm-4.5", {"v": {"anyOf": [{"type": "object"}, {"type": "string"}]}}, glm45(v='{"a": 1}'), {"v": {"a": 1}}),
    case(20, "mlc-ai/xgrammar#207", "glm-4.7", {"t": {"$ref": "#/$defs/T"}}, glm(t='{"v":1,"sub":[{"v":2,"sub":[]}]}'), {"t": {"v": 1, "sub": [{"v": 2, "sub": []}]}}, schema=TREE),
    case(20, "in JSON", "hermes", {"t": {"$ref": "#/$defs/T"}}, hermes({"t": {"sub": [{"sub": []}]}}), {"t": {"sub": [{"sub": []}]}}, schema=TREE),
    case(20, "of the root", "qwen3-coder", {"sub": {"$ref": "#"}}, coder(sub='{"sub": {}}'), {"sub": {"sub": {}}}),
    case(20, "that refers to itself only", "glm-4.7", {"v": {"$ref": "#/$defs/L"}}, glm(v="7"), {"v": 7}, schema={"$defs": {"L": {"$ref": "#/$defs/L"}}}),
]  # fmt: skip

COERCION: list[Case] = [
    case(21, "lightseekorg/smg#1841", "glm-4.7", {"a": "string", "b": "string", "c": "string"}, glm(a="true", b="4", c="[60,30]"), {"a": "true", "b": "4", "c": "[60,30]"}),
    case(21, "in Qwen's tags", "qwen3-coder", {"a": "string", "b": "string"}, coder(a="True", b="1e3"), {"a": "True", "b": "1e3"}),
    case(21, "in GLM-4.5's", "glm-4.5", {"a": "string", "b": "string"}, glm45(a="-0", b='{"k": 1}'), {"a": "-0", "b": '{"k": 1}'}),
    case(21, "quotes are the string's own", "glm-4.7", {"a": "string"}, glm(a='"quoted"'), {"a": '"quoted"'}),
    case(22, "dynamo glm47 v1", "glm-4.7", {"v": "string"}, glm(v='{"a":1}'), {"v": '{"a":1}'}),
    case(22, "an array", "glm-4.7", {"v": "string"}, glm(v='["a"]'), {"v": '["a"]'}),
    case(22, "a whole file", "qwen3-coder", {"v": "string"}, coder(v='{\n  "name": "x"\n}'), {"v": '{\n  "name": "x"\n}'}),
    case(22, "in DSML", "deepseek-v3.2", {"v": "string"}, dsml(v='{"a":1}'), {"v": '{"a":1}'}),
    case(23, "dynamo glm47 v1", "glm-4.7", {"n": "number"}, glm(n="1"), '{"n": 1}'),
    case(23, "beyond 2**53", "glm-4.7", {"n": "integer"}, glm(n="9007199254740993"), '{"n": 9007199254740993}'),
    case(23, "beyond 2**64", "qwen3-coder", {"n": "integer"}, coder(n="123456789012345678901234567890"), '{"n": 123456789012345678901234567890}'),
    case(23, "more digits than a float has", "glm-4.5", {"n": "number"}, glm45(n="0.1000000000000000055511151231257827"), '{"n": 0.1000000000000000055511151231257827}'),
    case(23, "inside an object", "glm-4.7", {"o": "object"}, glm(o='{"id": 9007199254740993}'), '{"o": {"id": 9007199254740993}}'),
    case(23, "in JSON", "kimi-k2", {"n": "integer"}, kimi(kimi_call('{"n":9007199254740993}')), '{"n":9007199254740993}'),
    case(25, "ml-explore/mlx-lm#1236", "glm-4.7", {"n": "integer"}, glm(n="2026-01-15"), {"n": "2026-01-15"}, buckets=["SchemaMismatch"]),
    case(25, "a word", "qwen3-coder", {"n": "integer"}, coder(n="seven"), {"n": "seven"}, buckets=["SchemaMismatch"]),
    case(25, "a fraction", "glm-4.7", {"n": "integer"}, glm(n="1.5"), {"n": 1.5}, buckets=["SchemaMismatch"]),
    case(25, "Python for an object", "glm-4.5", {"o": "object"}, glm45(o="{'a': 1}"), {"o": "{'a': 1}"}, buckets=["SchemaMismatch"]),
    case(25, "a quoted number", "glm-4.7", {"n": "integer"}, glm(n='"5"'), {"n": "5"}, buckets=["SchemaMismatch"]),
    case(26, "sgl-project/sglang#36688", "glm-4.7", {"v": {}}, glm(v="123"), {"v": 123}),
    case(26, "not declared at all", "glm-4.7", {}, glm(v="123"), {"v": 123}),
    case(26, "of an unknown tool", "glm-4.7", {}, glm("nope", v="123"), [("nope", {"v": 123})], buckets=["UnknownName"]),
    case(26, "an object without a schema", "qwen3-coder", {"v": {}}, coder(v='{"a": [1]}'), {"v": {"a": [1]}}),
    case(27, "sgl-project/sglang#36688", "glm-4.7", {"v": {}}, glm(v="123abc"), {"v": "123abc"}),
    case(27, "a date", "glm-4.7", {"v": {}}, glm(v="2026-01-15"), {"v": "2026-01-15"}),
    case(27, "a version", "qwen3-coder", {"v": {}}, coder(v="1.2.3"), {"v": "1.2.3"}),
    case(27, "an open bracket", "glm-4.7", {"v": {}}, glm(v="[draft"), {"v": "[draft"}),
    case(29, "vllm-project/vllm#42047", "glm-4.7", {"n": "number"}, glm(n="108.2"), '{"n": 108.2}'),
    case(29, "in JSON", "hermes", {"n": "number"}, hermes('{"n": 108.2}'), '{"n": 108.2}'),
    case(29, "with an exponent", "kimi-k2", {"n": "number"}, kimi(kimi_call('{"n": 1.082e2}')), '{"n": 1.082e2}'),
    case(29, "a zero behind the point", "deepseek-v3.1", {"n": "number"}, deepseek(deepseek_call('{"n": 5.0}')), '{"n": 5.0}'),
    case(30, "vllm-project/vllm#49316", "kimi-k2", {"n": "integer", "s": "string", "b": "boolean"}, kimi(kimi_call({"n": 1, "s": "1", "b": True})), {"n": 1, "s": "1", "b": True}),
    case(30, "nested", "kimi-k2", {"o": "object"}, kimi(kimi_call({"o": {"n": [1, "1", None]}})), {"o": {"n": [1, "1", None]}}),
    case(30, "in DeepSeek's", "deepseek-v3.1", {"n": "integer", "s": "string"}, deepseek(deepseek_call({"n": 1, "s": "1"})), {"n": 1, "s": "1"}),
    case(30, "in Llama's", "llama-3", {"n": "integer", "s": "string"}, llama({"n": 1, "s": "1"}), {"n": 1, "s": "1"}),
    case(31, "vllm-project/vllm#47906", "glm-4.7", {"i": "integer", "b": "boolean", "z": "null", "a": "array"}, glm(i="1", b="true", z="null", a="[]"), {"i": 1, "b": True, "z": None, "a": []}),
    case(31, "in Qwen's tags", "qwen3-coder", {"i": "integer", "b": "boolean"}, coder(i="1", b="True"), {"i": 1, "b": True}),
    case(31, "in DSML", "deepseek-v3.2", {"i": "integer", "b": "boolean"}, dsml(i="=1", b="=true"), {"i": 1, "b": True}),
    case(31, "in DSML, marked wrongly", "deepseek-v3.2", {"i": "integer"}, dsml(i="1"), {"i": "1"}, buckets=["SchemaMismatch"]),
    case(32, "vllm-project/vllm#13622", "hermes", {"n": "integer"}, hermes({"n": 5}), {"n": 5}),
    case(32, "negative", "llama-3", {"n": "integer"}, llama({"n": -5}), {"n": -5}),
    case(32, "at the end of tags", "glm-4.7", {"n": "integer"}, glm(n="5"), {"n": 5}),
    case(32, "with a line break around", "glm-4.5", {"n": "integer"}, glm45(n="\n5\n"), {"n": 5}),
    case(34, "vllm-project/vllm#48753", "qwen3-coder", {"code": "string"}, coder(code=CODE), {"code": CODE}),
    case(34, "line breaks alone", "qwen3-coder", {"code": "string"}, coder(code="\n\n"), {"code": "\n\n"}),
    case(34, "without the tags' own lines", "qwen3-coder", {"code": "string"}, "<tool_call>\n<function=f>\n<parameter=code>x\n\n</parameter>\n</function>\n</tool_call>", {"code": "x\n"}),
    case(34, "in GLM's tags", "glm-4.7", {"code": "string"}, glm(code=CODE), {"code": CODE}),
    case(34, "tabs and carriage returns", "glm-4.5", {"code": "string"}, glm45(code="\t\r\n x \r\n"), {"code": "\t\r\n x \r\n"}),
]  # fmt: skip

CASES = [*ENTITIES, *NULLS, *NESTING, *COERCION]
