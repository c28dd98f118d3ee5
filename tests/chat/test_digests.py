"""Digests of the chat side against vectors computed from the published layouts."""

import pytest

from mlxcel.chat.media import TEXT_ONLY_DIGEST, media_digest
from mlxcel.chat.session import ANONYMOUS_SESSION, session_key
from mlxcel.chat.signature import canonical_json, template_signature, tool_choice_tag, tools_digest

TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"b": 1, "a": [True, None]}}}


def test_media_digest_of_text_is_the_fixed_constant():
    """A request without media has the digest that the layout fixes."""
    assert TEXT_ONLY_DIGEST.hex() == "ef7a54571ae5a2a85fff7d834976109cec3359eaf80864632ea0830345495ef5"


def test_media_digest_knows_order_and_kind():
    """Swapped images, and an image where audio was, give other digests (B109)."""
    digests = {
        media_digest([b"a", b"b"]),
        media_digest([b"b", b"a"]),
        media_digest([b"a"], [b"b"]),
        media_digest([b"ab"]),
    }
    assert len(digests) == 4


def test_tools_digest_of_nothing_is_the_golden_vector():
    """No tools, as None or as an empty list, hash to the vector of the layout."""
    golden = "573c70378dd56e5e1158003ac380a5c76d8278ff298fb5bb03ef0b421b34bd53"
    assert tools_digest([]) == tools_digest(None) == golden


def test_template_signature_is_the_golden_vector():
    """The guide's four inputs hash to the vector of the layout."""
    golden = "3ba759debd8356edc0cfcbccb1826e33cc1ccc22cdf1055896e582153d6dba7f"
    assert template_signature("T", {}, None, []) == golden


def test_each_input_changes_the_signature():
    """One space in the template, one kwarg, the tool choice and a tool each give another signature."""
    signatures = {
        template_signature("T", {}, None, []),
        template_signature("T ", {}, None, []),
        template_signature("T", {"a": 1}, None, []),
        template_signature("T", {}, "auto", []),
        template_signature("T", {}, None, [TOOL]),
    }
    assert len(signatures) == 5


def test_order_of_kwargs_and_schema_keys_does_not_matter():
    """Maps are canonical: their order is no input (the rendered tokens still decide about a hit)."""
    other = {
        "function": {"parameters": {"a": [True, None], "b": 1}, "description": "d", "name": "f"},
        "type": "function",
    }
    assert template_signature("T", {"a": 1, "b": 2}, None, [TOOL]) == template_signature(
        "T", {"b": 2, "a": 1}, None, [other]
    )


def test_canonical_json_sorts_by_utf8_bytes_and_keeps_non_ascii():
    """Keys sort by their UTF-8 bytes, also past the basic plane, where UTF-16 order differs."""
    assert canonical_json({"\U0001f600": 1, "\uffee": 2, "가": "나"}) == '{"가":"나","\uffee":2,"\U0001f600":1}'


def test_canonical_json_refuses_nan():
    """NaN is no JSON."""
    with pytest.raises(ValueError, match="JSON"):
        canonical_json({"a": float("nan")})


def test_tool_choice_tags():
    """Absent, a mode and a named function have distinct tags."""
    named = {"type": "function", "function": {"name": "f"}}
    assert [tool_choice_tag(choice) for choice in (None, "none", named)] == ["__absent__", "mode:none", "specific:f"]


def test_session_key_takes_the_first_that_is_not_empty():
    """prompt_cache_key, then user, then the anonymous key; empty strings count as absent."""
    assert session_key("k", "u") == "k"
    assert session_key("", "u") == "u"
    assert session_key(None, "") == ANONYMOUS_SESSION
