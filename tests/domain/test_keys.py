"""The format of API keys: what scanners, users and stores rely on."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_inference.domain import keys


def make() -> tuple[str, keys.ApiKey]:
    return keys.create("tenant", name="test", created_at=1.0)


def test_a_key_matches_the_pattern_published_for_scanners():
    text, key = make()
    match = keys.PATTERN.fullmatch(text)
    assert match is not None
    assert match[1] == key.key_id


def test_the_checksum_is_a_crc32_in_base_62_over_what_stands_before_it():
    text, _ = make()
    body, _, check = text.rpartition("_")
    value = 0
    for digit in check:
        value = value * 62 + keys.ALPHABET.index(digit)
    assert value == zlib.crc32(body.encode())


def test_a_known_body_has_its_known_checksum():
    assert keys.checksum("pi_live_000000000000_" + "0" * 43) == "1z7QUZ"


def test_nothing_of_the_secret_is_kept_but_a_digest_and_four_digits():
    text, key = make()
    secret = text.split("_")[3]
    kept = repr(key)
    assert secret not in kept
    assert key.last_four == secret[-4:]
    assert secret[:-4] not in kept


def test_two_keys_share_nothing():
    (one, first), (other, second) = make(), make()
    assert one != other
    assert first.key_id != second.key_id


@given(st.integers(0, keys.KEY_LENGTH - 1), st.sampled_from(keys.ALPHABET + "_- é"))
def test_a_key_with_one_character_changed_is_not_that_key(position: int, character: str):
    text, key = make()
    changed = text[:position] + character + text[position + 1 :]
    assert keys.verify(changed, key) == (changed == text)


@given(st.text(max_size=100))
def test_other_text_has_no_key_id_or_does_not_verify(text: str):
    _, key = make()
    assert keys.parse(text) is None or not keys.verify(text, key)


@pytest.mark.parametrize("cut", [0, 1, 8, 20, 70])
def test_a_cut_key_has_no_key_id(cut: int):
    text, _ = make()
    assert keys.parse(text[:cut]) is None
