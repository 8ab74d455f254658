"""What a GGUF file says about itself."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prime_inference.engines.local.gguf import GgufHead, NotGguf, read_head


def string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def gguf(*fields: tuple[str, int, bytes], version: int = 3) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", version, 0, len(fields))
    return head + b"".join(
        string(name) + struct.pack("<I", kind) + value for name, kind, value in fields
    )


WHOLE = gguf(
    ("general.architecture", 8, string("llama")),
    ("tokenizer.ggml.tokens", 9, struct.pack("<IQ", 8, 2) + string("a") + string("bc")),
    ("tokenizer.ggml.scores", 9, struct.pack("<IQ", 6, 2) + struct.pack("<ff", 0, 1)),
    ("general.name", 8, string("Tiny")),
    ("llama.context_length", 4, struct.pack("<I", 512)),
    ("tokenizer.chat_template", 8, string("{{ messages }}")),
)


def test_the_head_of_the_default_model(model_file: Path):
    head = read_head(model_file)
    assert head.architecture == "llama"
    assert head.context_tokens == 8192
    assert head.has_chat_template


def test_arrays_are_passed_over(tmp_path: Path):
    file = tmp_path / "tiny.gguf"
    file.write_bytes(WHOLE)
    head = read_head(file)
    assert head == GgufHead("llama", "Tiny", 512, True, metadata_bytes=len(WHOLE))


def test_keys_and_values_of_a_token_are_counted_over_layers_and_heads(tmp_path: Path):
    numbers = {
        "block_count": 10,
        "embedding_length": 1024,
        "attention.head_count": 16,
        "attention.head_count_kv": 4,
        "attention.key_length": 128,
    }
    fields = [(f"llama.{name}", 4, struct.pack("<I", value)) for name, value in numbers.items()]
    file = tmp_path / "numbers.gguf"
    file.write_bytes(gguf(("general.architecture", 8, string("llama")), *fields))
    assert read_head(file).kv_bytes_per_token == 2 * 10 * 4 * (128 + 64)


def test_a_file_that_does_not_say_has_no_context_length(tmp_path: Path):
    file = tmp_path / "silent.gguf"
    data = gguf(("general.architecture", 8, string("llama")))
    file.write_bytes(data)
    assert read_head(file) == GgufHead("llama", "", 0, False, metadata_bytes=len(data))


@pytest.mark.parametrize("data", [b"", b"GGU", b"PK\x03\x04", b"<html>", gguf(version=1)])
def test_what_is_no_gguf_file_is_said_to_be_none(tmp_path: Path, data: bytes):
    file = tmp_path / "other"
    file.write_bytes(data)
    with pytest.raises(NotGguf):
        read_head(file)


@given(st.integers(0, len(WHOLE) - 1))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_file_cut_anywhere_is_damaged(tmp_path: Path, length: int):
    file = tmp_path / "cut.gguf"
    file.write_bytes(WHOLE[:length])
    with pytest.raises(NotGguf):
        read_head(file)


@pytest.mark.parametrize("kind", [8, 4], ids=["strings", "numbers"])
@pytest.mark.parametrize("length", [3, 2**40, 2**62, 2**64 - 1])
def test_an_array_that_goes_on_behind_the_end_is_damaged(tmp_path: Path, kind: int, length: int):
    array = struct.pack("<IQ", kind, length) + struct.pack("<Q", 0)
    for fields in ([("a", 9, array)], [("a", 9, array), ("b", 4, struct.pack("<I", 1))]):
        file = tmp_path / "long.gguf"
        file.write_bytes(gguf(*fields))
        with pytest.raises(NotGguf, match="cut short or damaged"):
            read_head(file)


@given(st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), max_size=4))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_file_damaged_anywhere_is_read_or_said_to_be_damaged(
    tmp_path: Path, damage: list[tuple[int, int]]
):
    data = bytearray(WHOLE)
    for place, byte in damage:
        data[place] = byte
    file = tmp_path / "damaged.gguf"
    file.write_bytes(data)
    try:
        head = read_head(file)
    except NotGguf:
        return
    assert head.context_tokens >= 0
    assert head.kv_bytes_per_token >= 0


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path):
    with pytest.raises(NotGguf, match=r"absent\.gguf cannot be read: No such file"):
        read_head(tmp_path / "absent.gguf")


@given(st.binary(max_size=200))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_arbitrary_bytes_behind_the_magic_never_crash_the_reader(tmp_path: Path, data: bytes):
    file = tmp_path / "noise.gguf"
    file.write_bytes(b"GGUF\x03\0\0\0" + data)
    try:
        head = read_head(file)
    except NotGguf:
        return
    assert isinstance(head, GgufHead)
