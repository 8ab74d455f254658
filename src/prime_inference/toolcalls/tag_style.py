"""How a format writes one parameter in tags."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

import msgspec

from prime_inference.toolcalls.exclusion import excluding, some
from prime_inference.toolcalls.grammar import alternatives, literal
from prime_inference.toolcalls.json_rules import Unwritable, escaped
from prime_inference.toolcalls.shapes import (
    ANY,
    ANY_ARRAY,
    ANY_RECORD,
    BOOLEAN,
    INTEGER,
    NUMBER,
    PYTHON_WORDS,
    TEXT,
    Shape,
)

# Names of parameters are short; a reader that waits for the end of one must not wait for ever.
LONGEST_NAME = 256

_PYTHON = {json: word for word, json in PYTHON_WORDS.items()}
_PLAIN: dict[Shape, str] = {
    INTEGER: "integer",
    NUMBER: "number",
    BOOLEAN: "boolean",
    ANY_ARRAY: "array",
    ANY_RECORD: "object",
}


class TagStyle(msgspec.Struct, frozen=True, dict=True):
    """How one parameter is written: `before` name `after` value `close`.

    `after_other` replaces `after` where the format marks values that are no strings.
    """

    before: str
    after: str
    close: str
    after_other: str | None = None
    ends_value: str = ""  # the part of `close` that no string may hold; all of it by default
    python_words: bool = False  # True, False and None are written beside true, false and null

    @cached_property
    def forbidden(self) -> str:
        return self.ends_value or self.close

    @cached_property
    def rules(self) -> tuple[tuple[str, str], ...]:
        """The rules that all parameters share; those of JSON are presupposed."""
        text = excluding("text", (self.forbidden,))
        booleans = alternatives(map(literal, self.words(("true", "false"))))
        other = self.after if self.after_other is None else self.after_other
        return (
            ("open-tag", literal(self.before)),
            ("is-string", literal(self.after)),
            ("is-other", literal(other)),
            ("close-tag", literal(self.close)),
            *text,
            ("some-text", some("text", text)),
            ("boolean", booleans),
            ("text-value", "is-string text close-tag"),
            *((f"{kind}-value", f"is-other {kind} close-tag") for kind in _PLAIN.values()),
        )

    @cached_property
    def plain(self) -> dict[Shape, str]:
        """The rules for what follows a name, for most parameters of most tools."""
        found = {shape: f"{kind}-value" for shape, kind in _PLAIN.items()}
        found[TEXT] = "text-value"
        if self.after_other is None:
            found[ANY] = "text-value"
        return found

    def words(self, texts: Iterable[str]) -> list[str]:
        """The spellings of scalars, given as JSON, where nothing marks strings."""
        found = []
        for text in texts:
            if text[0] == '"':
                found.append(msgspec.json.decode(text, type=str))
            elif self.python_words and text in _PYTHON:
                found += (text, _PYTHON[text])
            else:
                found.append(text)
        return found

    def written(self, name: str, value: object, text: str) -> str:
        """A whole parameter; `text` is the value's JSON. Raises `Unwritable`."""
        is_string = isinstance(value, str)
        raw = value if isinstance(value, str) else escaped(text, (self.forbidden,))
        if not self.can_name(name) or self.forbidden in raw:
            raise Unwritable(name)
        after = self.after if is_string or self.after_other is None else self.after_other
        return f"{self.before}{name}{after}{raw}{self.close}"

    def can_name(self, name: str) -> bool:
        """Whether a parameter of this name can be read back."""
        if not 0 < len(name) <= LONGEST_NAME:
            return False
        return name.isidentifier() or not (self.after[0] in name or "\n" in name)
