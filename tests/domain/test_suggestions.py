"""Names near one that does not exist."""

from __future__ import annotations

import pytest

from prime_inference.domain.suggestions import did_you_mean, nearest

MODELS = ["z-ai/glm-5.3", "z-ai/glm-4.7", "meta-llama/llama-3.1-70b-instruct"]


def test_the_nearest_name_comes_first():
    assert nearest("z-ai/glm5.3", MODELS)[0] == "z-ai/glm-5.3"


def test_case_does_not_matter_and_the_real_spelling_is_given():
    assert nearest("Z-AI/GLM-5.3", MODELS)[0] == "z-ai/glm-5.3"


DEFAULT = "huggingfacetb/smollm2-135m-instruct"


@pytest.mark.parametrize(
    "asked", ["smollm2", "SmolLM2", "SmolLM2-135M", "135m", "instruct", "acme/smollm2"]
)
def test_a_part_of_a_name_is_enough_whatever_its_case(asked: str):
    assert nearest(asked, [DEFAULT]) == [DEFAULT]


def test_of_names_that_hold_the_part_one_that_holds_all_comes_first():
    known = ["a/glm", "z-ai/glm-5.3-air", "z-ai/glm-5.3"]
    assert nearest("z-ai/glm", known) == ["z-ai/glm-5.3", "z-ai/glm-5.3-air", "a/glm"]


def test_no_more_names_are_given_than_asked_for():
    assert len(nearest("model", [f"acme/model-{number}" for number in range(9)], limit=2)) == 2


@pytest.mark.parametrize("asked", ["", "a", "ai", "acme/"])
def test_a_letter_or_two_are_in_every_name_and_suggest_none(asked: str):
    assert nearest(asked, [DEFAULT, "a/main-air"]) == []


def test_nothing_similar_gives_nothing():
    assert nearest("qqqq", MODELS) == []
    assert did_you_mean("qqqq", MODELS) == ""


def test_a_hint_is_a_sentence():
    assert did_you_mean("llama-3.1-70b", MODELS).startswith(" Did you mean meta-llama/")


def test_a_megabyte_of_name_is_answered_like_a_short_one():
    assert nearest("z" * 1_000_000, MODELS) == []
