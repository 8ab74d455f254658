"""Grammar expressions without recursion, as Python's regular expressions: an oracle."""

from __future__ import annotations

import re

_TOKEN = re.compile(
    r'\s+|"(?:[^"\\]|\\.)*"|\[(?:[^\]\\]|\\.)*\]|\{[0-9,]+\}|[()|?*+]|[a-z][a-z0-9-]*'
)
_PLAIN = {'\\"': '"', "\\\\": "\\", "\\n": "\n", "\\r": "\r", "\\t": "\t"}


def compiled(expression: str, rules: dict[str, str] | None = None) -> re.Pattern[str]:
    """The expression as a pattern; names of rules are replaced by their bodies."""
    return re.compile(_translated(expression, rules or {}), re.DOTALL)


def rules_of(text: str) -> dict[str, str]:
    """The rules of a grammar's text."""
    return dict(line.split(" ::= ", 1) for line in text.splitlines())


def _translated(expression: str, rules: dict[str, str]) -> str:
    found, place = "", 0
    while place < len(expression):
        token = _TOKEN.match(expression, place)
        assert token is not None, expression[place:]
        found += _one(token.group(), rules)
        place = token.end()
    return found


def _one(token: str, rules: dict[str, str]) -> str:
    if token.isspace():
        return ""
    if token[0] == '"':
        return "(?:" + re.escape(_unescaped(token[1:-1])) + ")"
    if token == "(":
        return "(?:"
    if token[0] == "[":
        return token.replace("\\ud800-\\udfff", "") if token != "[^\\ud800-\\udfff]" else "."
    if token[0].isalpha():
        return f"(?:{_translated(rules[token], rules)})"
    return token


def _unescaped(text: str) -> str:
    return re.sub(
        r"\\(?:u[0-9a-f]{4}|.)",
        lambda m: _PLAIN.get(m.group()) or chr(int(m.group()[2:], 16)),
        text,
    )
