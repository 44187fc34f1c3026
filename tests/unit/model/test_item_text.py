"""Item text is one clean, bounded line whatever it was made of."""

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from service.model.item_text import MAX_TEXT_CHARS, clean_text, item_text


@given(st.text(max_size=300))
def test_cleaning_leaves_no_control_bidi_or_zero_width_character_and_is_stable(text: str) -> None:
    cleaned = clean_text(text)
    assert all(unicodedata.category(character)[0] != "C" for character in cleaned)
    assert clean_text(cleaned) == cleaned


def test_hidden_characters_are_spaces_and_spaces_fold() -> None:
    assert clean_text("  A\u200bb\u202ec \n\t d\x00") == "A b c d"


def test_a_text_of_100k_characters_is_cut() -> None:
    assert len(item_text("t", "x" * 100_000)) <= MAX_TEXT_CHARS


def test_attributes_come_in_key_order_whatever_the_source() -> None:
    one = item_text("Toy Story", "A toy.", {"year": 1995.0, "genres": ("Animation", "Comedy")})
    two = item_text("Toy Story", "A toy.", {"genres": ["Animation", "Comedy"], "year": 1995})
    assert one == two == "Toy Story. genres: Animation, Comedy. year: 1995. A toy."


def test_an_item_that_says_nothing_has_no_text() -> None:
    assert item_text("\u200b", " ", {"brand": ""}) == ""
