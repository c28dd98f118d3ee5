"""Golden vectors of the guide's digests (facts sheet, section 4.8), and how layouts react to their fields."""

import pytest

from mlxcel.core.keys import EMPTY_MEDIA, NamespaceKey, PieceHasher, block_chain, empty_media_digest, entry_digest
from mlxcel.core.tokens import from_ids

TOKENS = from_ids(range(40))
CHAINS = {
    "sha256": (
        "d1b6f0504b78d959d5fb8a6942d31ac2d0b81b4f0dd9ce01a6b1e1a56c2a3be7",
        "823726647ce3a92abcd7e375c831d3a3b537e651dec4c380d8f14785c1811c04",
        "051e9af690e75f1884f9a10cc203e00bd089279512d0646c973544ab8151c156",
    ),
    "blake3": (
        "b5a0623911d213a47667fa3732c075110f6b4edb243853d57b13cc53812c657f",
        "a46917846d65ca2a4d7fe94f6427f72d4a3c65ec93dca63d58a0bf3f239d7683",
        "8f83777d4d721bce5f29444848dbd363b02624283ddbe39d363664296b9fe3a3",
    ),
}


def test_text_only_requests_share_one_media_digest() -> None:
    """The digest of no media is the guide's constant."""
    assert empty_media_digest().hex() == "ef7a54571ae5a2a85fff7d834976109cec3359eaf80864632ea0830345495ef5"


@pytest.mark.parametrize(
    ("regime", "expected"),
    [
        (None, "2f5db86ecca31a426a310934ec59afbf4dc0a65b4926ea07bba93df6a83d72ba"),
        (0, "5c8f6435722e9cb54377a59dc5ae7de338b569fe11fb44fb1190a9cda2cd05b6"),
    ],
)
def test_entry_key_v3(regime: int | None, expected: str) -> None:
    """The key of 40 tokens has the golden digest, with and without a RoPE regime."""
    digest = entry_digest("m", "", "sig", "__mlxcel_anon__", regime, EMPTY_MEDIA, TOKENS)
    assert digest.hex() == expected


@pytest.mark.parametrize("algorithm", sorted(CHAINS))
def test_block_chain(algorithm: str) -> None:
    """The chain of 40 tokens in blocks of 16 has three golden links, the last of a partial block."""
    chain = block_chain(TOKENS, 16, EMPTY_MEDIA, algorithm)
    assert tuple(link.hex() for link in chain) == CHAINS[algorithm]


def test_block_chain_names_what_it_accepts() -> None:
    """An unknown hash is refused with the names that would do."""
    with pytest.raises(ValueError, match=r"md5.*sha256 and blake3"):
        block_chain(TOKENS, 16, EMPTY_MEDIA, "md5")


def test_each_of_seven_dimensions_changes_the_entry_key() -> None:
    """No two keys that differ in one dimension are equal."""
    base = ("m", "", "sig", "s", None, EMPTY_MEDIA, TOKENS)
    others = ("n", "l", "gis", "t", 1, bytes(32), TOKENS[:-4])
    keys = {entry_digest(*base)} | {entry_digest(*base[:at], others[at], *base[at + 1 :]) for at in range(len(base))}
    assert len(keys) == len(base) + 1


def test_fields_do_not_run_into_each_other() -> None:
    """Moving a letter from one field to the next gives another key."""
    left = entry_digest("ab", "c", "s", "t", None, EMPTY_MEDIA, TOKENS)
    assert left != entry_digest("a", "bc", "s", "t", None, EMPTY_MEDIA, TOKENS)


def test_each_field_changes_the_namespace() -> None:
    """KV is shared only where all seven fields of the namespace agree."""
    keys = [
        NamespaceKey("f"),
        NamespaceKey("g"),
        NamespaceKey("f", lora_id="l"),
        NamespaceKey("f", rope_regime=0),
        NamespaceKey("f", rope_regime=1),
        NamespaceKey("f", kv_mode="q8g64"),
        NamespaceKey("f", media_digest=bytes(32)),
        NamespaceKey("f", tenant_salt="x"),
        NamespaceKey("f", block_size=32),
    ]
    assert len({key.digest() for key in keys}) == len(keys)


def test_piece_keys_do_not_depend_on_how_a_prefix_was_cut() -> None:
    """The key of tokens [16, 32) is the same whether the hasher passed position 16 or not; start and kind count."""
    at_once, in_steps = PieceHasher(b"n", TOKENS), PieceHasher(b"n", TOKENS)
    in_steps.key(0, 16)
    expected = at_once.key(16, 32)
    assert in_steps.key(16, 32) == expected
    assert PieceHasher(b"n", TOKENS).key(0, 32) != expected
    assert PieceHasher(b"n", TOKENS).key(16, 32, b"state") != expected
    assert PieceHasher(b"o", TOKENS).key(16, 32) != expected


def test_piece_keys_are_asked_for_in_order() -> None:
    """Asking backwards is a fault of the caller."""
    hasher = PieceHasher(b"n", TOKENS)
    hasher.key(0, 32)
    with pytest.raises(AssertionError, match="growing order"):
        hasher.key(0, 16)
