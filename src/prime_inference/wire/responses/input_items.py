"""What a stored response was asked, as pages of a list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qs

from msgspec import Struct

from prime_inference.domain.errors import InvalidRequest, UnsupportedParameter

# OpenAI's bounds.
DEFAULT_ITEMS = 20
MOST_ITEMS = 100

ORDERS = ("asc", "desc")
INCLUDABLE = "reasoning.encrypted_content"  # what an item was sent with, it is listed with


class PageQuery(Struct, frozen=True):
    """Which items are asked for: so many of them, in this order, behind this one."""

    limit: int = DEFAULT_ITEMS
    order: str = "desc"
    after: str | None = None


def read_page_query(query: str) -> PageQuery:
    """A URL's query. Raises InvalidRequest, UnsupportedParameter."""
    given = parse_qs(query, keep_blank_values=True)
    included = [*given.pop("include", ()), *given.pop("include[]", ())]
    if any(name != INCLUDABLE for name in included):
        raise UnsupportedParameter(f"'include' takes {INCLUDABLE!r} only.", param="include")
    last = {name: values[-1] for name, values in given.items()}
    limit, order = last.pop("limit", str(DEFAULT_ITEMS)), last.pop("order", "desc")
    after = last.pop("after", None)
    for name in last:
        raise UnsupportedParameter(f"'{name[:64]}' is not supported here.", param=name[:64])
    digits = limit.isascii() and limit.isdecimal() and len(limit) <= len(str(MOST_ITEMS))
    if not (digits and 1 <= int(limit) <= MOST_ITEMS):
        raise InvalidRequest(f"'limit' is a whole number from 1 to {MOST_ITEMS}.", param="limit")
    if order not in ORDERS:
        raise InvalidRequest(f"'order' is one of {', '.join(ORDERS)}.", param="order")
    return PageQuery(int(limit), order, after)


def items_page(items: Sequence[dict[str, Any]], id_prefix: str, query: PageQuery) -> dict[str, Any]:
    """The page of a response's input items, oldest first as given. Raises InvalidRequest.

    Items that were sent without an id, or with one that another has, get one of the prefix.
    """
    shown: dict[str, dict[str, Any]] = {}
    for number, item in enumerate(items):
        given = item.get("id")
        item_id = given if given and given not in shown else f"{id_prefix}{number}"
        shown[item_id] = _shown(item, item_id)
    ids = list(shown) if query.order == "asc" else [*reversed(shown)]
    begin = 0
    if query.after is not None:
        if query.after not in shown:
            raise InvalidRequest("'after' names no item of this response.", param="after")
        begin = ids.index(query.after) + 1
    page = ids[begin : begin + query.limit]
    return {
        "object": "list",
        "data": [shown[item_id] for item_id in page],
        "first_id": page[0] if page else None,
        "last_id": page[-1] if page else None,
        "has_more": begin + len(page) < len(ids),
    }


def _shown(item: dict[str, Any], item_id: str) -> dict[str, Any]:
    """An input item with what may be left out when it is sent."""
    shown = {"type": "message", **item, "id": item_id}
    if isinstance(shown.get("content"), str):
        kind = "output_text" if shown.get("role") == "assistant" else "input_text"
        shown["content"] = [{"type": kind, "text": shown["content"]}]
    return shown
