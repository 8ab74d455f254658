from __future__ import annotations

import json

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_inference.kvcache import row
from prime_inference.kvcache.errors import DtypeMismatch, ShapeMismatch
from prime_inference.kvcache.minifloat import (
    e2m1_table,
    e4m3_table,
    e4m3_value,
    encode_e2m1,
    encode_e4m3,
)
from prime_inference.kvcache.nvfp4 import dequantize, quantize
from tests.kvcache.golden_rows import GOLDEN, golden_elements
from tests.kvcache.scalar_row import E2M1, E4M3, scalar_row, signed_code

Array = npt.NDArray[np.float32]
NO_ROPE = np.zeros((1, 64), np.float32)


def bf16(values: npt.NDArray[np.floating]) -> Array:
    """Cut float32 to bfloat16 values, the type that a real writer sees."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return (bits & np.uint32(0xFFFF0000)).view(np.float32)


def random_latents(seed: int, tokens: int, size: float) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    spread = np.exp2(rng.uniform(-6, 0, (tokens, 576)))
    values = bf16(rng.standard_normal((tokens, 576)) * spread * size)
    return values[:, :512], values[:, 512:]


def test_the_parts_of_a_row_fill_it_without_overlap() -> None:
    assert (row.ROPE_OFFSET, row.SCALE_OFFSET, row.ROW_BYTES) == (256, 320, 352)
    assert sorted(row.SCALE_BYTES) == list(range(32))
    assert row.SCALE_BYTES[:6] == (0, 8, 16, 24, 1, 9)


def test_every_code_times_every_scale_decodes_to_the_exact_product() -> None:
    rows = np.zeros((256, 352), np.uint8)
    rows[:, :256] = np.tile(
        np.array([hi << 4 | lo for hi in range(16) for lo in range(16)], np.uint8), (256, 1)
    )
    rows[:, 320:] = np.arange(256, dtype=np.uint8)[:, None]
    latent, _ = dequantize(rows)
    for scale in range(256):
        if scale & 0x7F == 0x7F:
            assert np.isnan(latent[scale]).all()
            continue
        exact = E4M3[scale & 0x7F] * (-1 if scale & 0x80 else 1)
        for index in range(512):
            byte = index // 2
            code = byte >> 4 if index % 2 else byte & 15
            want = float(E2M1[code & 7] * exact) * (-1 if code & 8 else 1)
            assert latent[scale, index] == want


def test_every_code_under_every_scale_a_writer_can_make_is_written_back_as_it_was() -> None:
    """A block that holds the code 6 asks for its own scale, and gets each code back."""
    codes = np.array([7, 15, *range(7), *range(8, 15)], np.uint8)
    for scale in range(1, 127):
        values = (e2m1_table()[codes] * np.float32(e4m3_value(scale)))[None, :]
        written = quantize(np.tile(values, (1, 32)), NO_ROPE)[0]
        assert (written[320:] == scale).all()
        got = np.stack([written[:8] & 15, written[:8] >> 4], axis=-1).reshape(16)
        assert (got == codes).all()


def test_all_e4m3_bytes_round_trip_through_the_rope_part() -> None:
    rope = e4m3_table().reshape(4, 64)
    rows = quantize(np.zeros((4, 512), np.float32), rope)
    codes = rows[:, 256:320].reshape(256)
    want = np.arange(256)
    want[0xFF] = 0x7F  # a NaN loses its sign
    assert (codes == want).all()
    np.testing.assert_array_equal(dequantize(rows)[1], rope)


def test_every_bfloat16_encodes_as_the_exact_nearest_even_neighbour() -> None:
    values = (np.arange(65536, dtype=np.uint32) << 16).view(np.float32)
    values = values[np.isfinite(values) & (np.abs(values) < 1000)][::37]
    e2m1, e4m3 = encode_e2m1(values), encode_e4m3(values)
    for value, short, long in zip(values.tolist(), e2m1.tolist(), e4m3.tolist(), strict=True):
        assert short == signed_code(E2M1, value, 8)
        assert long == signed_code(E4M3, value, 0x80)


def test_midpoints_go_to_the_even_code() -> None:
    points = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], np.float32)
    assert encode_e2m1(points).tolist() == [0, 2, 2, 4, 4, 6, 6]
    assert encode_e2m1(-points).tolist() == [8, 10, 10, 12, 12, 14, 14]
    table = e4m3_table()[:127]
    midpoints = (table[1:] + table[:-1]) / np.float32(2)
    assert (encode_e4m3(midpoints) % 2 == 0).all()


def test_the_product_with_the_rounded_reciprocal_decides_where_division_would_say_otherwise() -> (
    None
):
    """5/4 of the scale 15/512 is a midpoint; upstream's product lies just above it."""
    scale = np.float32(15 / 512)
    latent = np.zeros((1, 512), np.float32)
    latent[0, :2] = [6 * scale, 1.25 * scale]
    assert encode_e2m1(latent[0, 1:2] / scale).tolist() == [2]
    rows = quantize(latent, NO_ROPE)
    assert rows[0, 320] == 15
    assert rows[0, 0] == 3 << 4 | 7
    assert bytes(rows[0]) == scalar_row(latent[0].tolist(), [0.0] * 64, "round_up")


@pytest.mark.parametrize("writer", row.WRITERS)
def test_the_golden_rows_come_out_bit_for_bit(writer: row.Writer) -> None:
    golden = json.loads(GOLDEN.read_text())["rows"][writer]
    elements = golden_elements()
    latent = np.array([latent for latent, _ in elements], np.float32)
    rope = np.array([rope for _, rope in elements], np.float32)
    rows = quantize(latent, rope, writer=writer)
    assert [bytes(one).hex() for one in rows] == golden


@pytest.mark.parametrize("writer", row.WRITERS)
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), exponent=st.integers(-14, 14))
def test_random_rows_equal_those_of_exact_arithmetic(
    writer: row.Writer, seed: int, exponent: int
) -> None:
    latent, rope = random_latents(seed, 2, 2.0**exponent)
    rows = quantize(latent, rope, writer=writer)
    for token in range(2):
        assert bytes(rows[token]) == scalar_row(
            latent[token].tolist(), rope[token].tolist(), writer
        )


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), exponent=st.integers(-14, 10))
def test_four_over_six_loses_at_most_what_round_up_loses_in_every_block(
    seed: int, exponent: int
) -> None:
    latent, rope = random_latents(seed, 8, 2.0**exponent)

    def loss(writer: row.Writer) -> npt.NDArray[np.float64]:
        decoded, _ = dequantize(quantize(latent, rope, writer=writer))
        error = latent.astype(np.float64) - decoded
        return np.asarray(np.sum(error.reshape(8, 32, 16) ** 2, axis=-1), np.float64)

    assert (loss("four_over_six") <= loss("round_up") * (1 + 1e-6)).all()


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), exponent=st.integers(-8, 8))
def test_no_element_of_round_up_is_cut_short_and_none_is_off_by_over_a_sixth_of_amax(
    seed: int, exponent: int
) -> None:
    latent, rope = random_latents(seed, 8, 2.0**exponent)
    rows = quantize(latent, rope)
    scales = e4m3_table()[rows[:, 320:]][:, list(row.SCALE_BYTES)]
    amax = np.abs(latent).reshape(8, 32, 16).max(axis=-1)
    assert (amax <= 6 * scales).all()
    error = np.abs(dequantize(rows)[0] - latent).reshape(8, 32, 16)
    assert (error <= scales[:, :, None]).all()  # half the widest gap, from 4 to 6


@pytest.mark.parametrize("writer", row.WRITERS)
def test_rows_that_were_decoded_are_written_again_as_the_same_numbers(writer: row.Writer) -> None:
    latent, rope = random_latents(3, 64, 1.0)
    once, once_rope = dequantize(quantize(latent, rope, writer=writer))
    again, again_rope = dequantize(quantize(once, once_rope, writer="four_over_six"))
    np.testing.assert_array_equal(once, again)
    np.testing.assert_array_equal(once_rope, again_rope)


@pytest.mark.parametrize("writer", row.WRITERS)
def test_infinity_saturates_and_nan_becomes_the_largest_code(writer: row.Writer) -> None:
    latent = np.zeros((1, 512), np.float32)
    latent[0, :4] = [np.inf, -np.inf, np.nan, 1000.0]
    latent[0, 16:19] = [np.nan, -3.0, 3.0]
    latent[0, 32:48] = np.nan
    latent[0, 48] = 3.4e38
    rope = np.zeros((1, 64), np.float32)
    rope[0, :4] = [np.inf, -np.inf, np.nan, 449.0]
    rows = quantize(latent, rope, writer=writer)
    decoded, decoded_rope = dequantize(rows)
    assert decoded[0, :4].tolist() == [2688.0, -2688.0, 2688.0, 896.0]
    assert decoded[0, 16:19].tolist() == [3.0, -3.0, 3.0]  # amax 3 without the NaN: scale 0.5
    assert (decoded[0, 32:48] == 6 * 2.0**-9).all()
    assert decoded[0, 48] == 2688.0
    assert decoded_rope[0, [0, 1, 3]].tolist() == [448.0, -448.0, 448.0]
    assert np.isnan(decoded_rope[0, 2])


def test_a_zero_row_is_the_smallest_scale_and_keeps_the_signs() -> None:
    latent = np.zeros((1, 512), np.float32)
    latent[0, 1] = -0.0
    rows = quantize(latent, NO_ROPE)
    assert rows[0, 0] == 0x80
    assert (rows[0, 1:320] == 0).all()
    assert (rows[0, 320:] == 1).all()


def test_no_tokens_make_no_rows() -> None:
    rows = quantize(
        np.empty((0, 512), np.float32), np.empty((0, 64), np.float32), writer="four_over_six"
    )
    assert rows.shape == (0, 352)
    latent, rope = dequantize(rows)
    assert latent.shape == (0, 512)
    assert rope.shape == (0, 64)


def test_float16_is_taken_as_the_float32_it_is() -> None:
    latent, rope = random_latents(5, 4, 1.0)
    half, half_rope = latent.astype(np.float16), rope.astype(np.float16)
    np.testing.assert_array_equal(
        quantize(half, half_rope), quantize(half.astype(np.float32), half_rope.astype(np.float32))
    )


def test_rows_do_not_depend_on_strides_or_neighbours() -> None:
    latent, rope = random_latents(9, 6, 1.0)
    whole = quantize(latent, rope)
    np.testing.assert_array_equal(quantize(latent[::2], rope[::2]), whole[::2])


@pytest.mark.parametrize(
    ("latent", "rope", "error", "name"),
    [
        (np.zeros((2, 511), np.float32), np.zeros((2, 64), np.float32), ShapeMismatch, "latent"),
        (np.zeros(512, np.float32), np.zeros((1, 64), np.float32), ShapeMismatch, "latent"),
        (np.zeros((2, 512), np.float32), np.zeros((3, 64), np.float32), ShapeMismatch, "rope"),
        (np.zeros((2, 512), np.float32), np.zeros((2, 63), np.float32), ShapeMismatch, "rope"),
        (np.zeros((2, 512), np.float64), np.zeros((2, 64), np.float32), DtypeMismatch, "latent"),
        (np.zeros((2, 512), np.float32), np.zeros((2, 64), np.int8), DtypeMismatch, "rope"),
    ],
)
def test_arrays_that_are_no_latents_are_refused_by_name(latent, rope, error, name) -> None:
    with pytest.raises(error) as caught:
        quantize(latent, rope)
    assert caught.value.name == name


def test_rows_of_another_width_or_type_are_refused() -> None:
    with pytest.raises(ShapeMismatch):
        dequantize(np.zeros((2, 351), np.uint8))
    with pytest.raises(DtypeMismatch):
        dequantize(np.zeros((2, 352), np.int8))


def test_an_unknown_writer_is_refused() -> None:
    with pytest.raises(ValueError, match="round_up"):
        quantize(np.zeros((1, 512), np.float32), NO_ROPE, writer="down")  # type: ignore[arg-type]
