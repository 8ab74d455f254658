"""What a `$ref` points at: JSON pointers (RFC 6901), anchors and embedded `$id`s.

Only inside the schema itself. Nothing is ever fetched: a reference that leaves the document
does not resolve.
"""

from __future__ import annotations

from urllib.parse import unquote, urljoin

# A document is walked once to find anchors and ids; this bounds the walk. The largest tool
# schemas in public corpora have some thousand nodes.
MOST_NODES = 20_000

_ANCHORS = ("$anchor", "$dynamicAnchor")
_IDS = ("$id", "id")


class References:
    """Resolves the references of one schema document."""

    def __init__(self, root: object) -> None:
        self._root = root
        self._named: dict[str, object] | None = None

    def resolve(self, reference: object) -> tuple[str, object] | None:
        """A stable name for the target, and the target; None if it does not resolve."""
        if not isinstance(reference, str):
            return None
        if reference in ("#", ""):
            return "#", self._root
        if reference.startswith("#/"):
            return self._pointed(self._root, reference[1:], reference)
        if self._named is None:
            self._named = _named_parts(self._root)
        base, _, fragment = reference.partition("#")
        if fragment.startswith("/"):
            start = self._named.get(base)
            return None if start is None else self._pointed(start, fragment, reference)
        target = self._named.get(reference)
        return None if target is None else (reference, target)

    @staticmethod
    def _pointed(start: object, pointer: str, name: str) -> tuple[str, object] | None:
        node = start
        for raw in pointer.split("/")[1:]:
            step = unquote(raw).replace("~1", "/").replace("~0", "~")
            if isinstance(node, dict) and step in node:
                node = node[step]
            elif isinstance(node, list) and step.isdecimal() and int(step) < len(node):
                node = node[int(step)]
            else:
                return None
        return name, node


def _named_parts(root: object) -> dict[str, object]:
    """Every part of the document that has a name: `#anchor`, `id`, `id#anchor`."""
    found: dict[str, object] = {}
    pending: list[tuple[object, str]] = [(root, "")]
    for _ in range(MOST_NODES):
        if not pending:
            break
        node, base = pending.pop()
        if isinstance(node, dict):
            base = _note_names(node, base, found)
            pending.extend((value, base) for value in node.values())
        elif isinstance(node, list):
            pending.extend((value, base) for value in node)
    return found


def _note_names(node: dict[str, object], base: str, found: dict[str, object]) -> str:
    for keyword in _IDS:
        name = node.get(keyword)
        if isinstance(name, str) and name.startswith("#"):  # drafts 4 to 7 anchor this way
            found.setdefault(name, node)
        elif isinstance(name, str):
            base = _joined(base, name).removesuffix("#")
            found.setdefault(base, node)
            found.setdefault(name, node)
    for keyword in _ANCHORS:
        name = node.get(keyword)
        if isinstance(name, str):
            found.setdefault("#" + name, node)
            found.setdefault(f"{base}#{name}", node)
    return base


def _joined(base: str, name: str) -> str:
    try:
        return urljoin(base, name)
    except ValueError:  # not a URI, such as "http://[": a name like any other
        return name
