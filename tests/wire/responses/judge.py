"""The grammar of a response's events, as a judge that knows nothing of how they are made.

response := created in_progress item* (completed | incomplete)
          | created in_progress item* [item cut anywhere] failed
item     := output_item.added [content_part.added] delta* done [content_part.done]
            output_item.done
"""

from __future__ import annotations

from typing import Any

Event = tuple[str, dict[str, Any]]

WORDS = {
    "output_text": ("response.output_text", "text"),
    "reasoning_text": ("response.reasoning_text", "text"),
    "refusal": ("response.refusal", "refusal"),
}


class Reader:
    """Events in order; each may be taken once."""

    def __init__(self, events: list[Event]) -> None:
        for number, (name, data) in enumerate(events):
            assert data["type"] == name
            assert data["sequence_number"] == number
        self._left = list(events)

    def next(self, name: str) -> dict[str, Any]:
        assert self._left, f"the stream ends where {name} is due"
        found, data = self._left.pop(0)
        assert found == name
        return data

    def at(self, *names: str) -> bool:
        return bool(self._left) and self._left[0][0] in names

    @property
    def over(self) -> bool:
        return not self._left


def judge(events: list[Event]) -> dict[str, Any]:
    """The final object of a legal sequence; AssertionError for any other."""
    reader = Reader(events)
    created = reader.next("response.created")["response"]
    assert created["status"] == "in_progress"
    assert created["output"] == []
    assert reader.next("response.in_progress")["response"] == created
    output: list[dict[str, Any]] = []
    cut: dict[str, Any] | None = None
    while reader.at("response.output_item.added"):
        item, is_done = _item(reader, len(output))
        if not is_done:
            cut = item
            break
        output.append(item)
    if reader.at("response.failed"):
        final = reader.next("response.failed")["response"]
        assert final["status"] == "failed"
        assert final["error"]["message"]
        assert final["output"][: len(output)] == output
        rest = final["output"][len(output) :]
        assert [item["status"] for item in rest] == (["incomplete"] if cut else [])
    else:
        assert cut is None
        status = "incomplete" if reader.at("response.incomplete") else "completed"
        final = reader.next(f"response.{status}")["response"]
        assert final["status"] == status
        assert final["output"] == output
        statuses = [item["status"] for item in output]
        assert statuses[:-1] == ["completed"] * len(statuses[:-1])
        assert statuses[-1:] in ([], [status])
        assert (final["incomplete_details"] is not None) == (status == "incomplete")
    assert reader.over
    changing = ("status", "output", "usage", "error", "incomplete_details", "store", "expires_at")
    for name in set(created) - set(changing):
        assert final[name] == created[name]
    return final  # type: ignore[no-any-return]


def _item(reader: Reader, index: int) -> tuple[dict[str, Any], bool]:
    """One item, and whether it came to its end."""
    added = reader.next("response.output_item.added")
    item = added["item"]
    assert added["output_index"] == index
    assert item["status"] == "in_progress"
    where = {"item_id": item["id"], "output_index": index}
    if item["type"] == "function_call":
        assert item["arguments"] == ""
        return _said(reader, where, item, "response.function_call_arguments", "arguments")
    assert item["content"] == []
    where["content_index"] = 0
    part = reader.next("response.content_part.added")
    assert {**part, **where} == part
    words, key = WORDS[part["part"]["type"]]
    assert part["part"][key] == ""
    return _said(reader, where, item, words, key)


def _said(
    reader: Reader, where: dict[str, Any], item: dict[str, Any], words: str, key: str
) -> tuple[dict[str, Any], bool]:
    text = ""
    while reader.at(f"{words}.delta"):
        delta = reader.next(f"{words}.delta")
        assert {**delta, **where} == delta
        assert delta["delta"]
        text += delta["delta"]
    if reader.at("response.failed"):
        return item, False
    done = reader.next(f"{words}.done")
    assert {**done, **where} == done
    assert done[key] == text
    if item["type"] != "function_call":
        part = reader.next("response.content_part.done")
        assert {**part, **where} == part
        assert part["part"][key] == text
    finished = reader.next("response.output_item.done")
    assert finished["output_index"] == where["output_index"]
    final = finished["item"]
    assert (final["id"], final["type"]) == (item["id"], item["type"])
    whole = final["arguments"] if item["type"] == "function_call" else final["content"][0][key]
    assert whole == text
    return final, True
