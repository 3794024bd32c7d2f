import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllmfront.text import StopMatch, StopMatcher

PIECES = st.lists(st.text(st.sampled_from("ab€"), max_size=4), max_size=12)
STOPS = st.lists(st.text(st.sampled_from("ab€"), min_size=1, max_size=4), min_size=1, max_size=4)


def run(matcher: StopMatcher, pieces: list[str]) -> tuple[list[str], StopMatch | None]:
    """Return what went out for each piece, and the match."""
    out = []
    for piece in pieces:
        match = matcher.feed(piece)
        out.append(matcher.take())
        if match is not None:
            return out, match
    out.append(matcher.finish())
    return out, None


@pytest.mark.parametrize(
    ("stops", "pieces", "expected"),
    [
        # As the peer: with six bytes, five are held.
        (
            ["zzzzzz"],
            ["Hello", " w", "or", "ld", " a", "ga", "in"],
            ["", "He", "ll", "o ", "wo", "rl", "d ", "again"],
        ),
        # Three bytes are held; where they would split a character, all of it is.
        (["bcde"], ["a", "", "", "€", "a", "a"], ["", "", "", "a", "", "", "€aa"]),
    ],
)
def test_the_longest_stop_string_less_one_byte_is_held(
    stops: list[str], pieces: list[str], expected: list[str]
) -> None:
    assert run(StopMatcher(stops), pieces) == (expected, None)


def test_nothing_is_held_when_the_stop_string_is_included() -> None:
    matcher = StopMatcher(["wor"], include_stop=True)

    out, match = run(matcher, ["Hello", " w", "orld"])

    assert out == ["Hello", " w", "or"]
    assert match == StopMatch("wor", 0)


def test_the_text_is_cut_inside_a_token() -> None:
    out, match = run(StopMatcher(["wor"]), ["Hello", " w", "orld"])

    assert out == ["Hel", "lo", " "]
    assert match == StopMatch("wor", 0)


@pytest.mark.parametrize(
    ("stops", "pieces", "text", "index"),
    [
        (["b", "ab"], ["ab"], "a", 0),
        (["ab", "b"], ["ab"], "", 0),
        (["rld", "wor"], [" w", "or", "ld"], " ", 1),
        (["wor", "orl"], ["worl"], "", 0),
        (["aa"], ["aaa"], "", 0),
        (["€"], ["a", "", "€x"], "a", 0),
    ],
)
def test_the_first_of_the_list_wins_at_the_token_that_completes(
    stops: list[str], pieces: list[str], text: str, index: int
) -> None:
    out, match = run(StopMatcher(stops), pieces)

    assert "".join(out) == text
    assert match == StopMatch(stops[index], index)


def test_nothing_matches_up_to_min_tokens_or_later_in_what_was_passed_over() -> None:
    assert run(StopMatcher(["a"], min_tokens=2), ["a", "a", "a"]) == (
        ["a", "a", ""],
        StopMatch("a", 0),
    )
    assert run(StopMatcher(["b"], min_tokens=2), ["b", "a", "a"])[1] is None


def test_a_match_may_begin_before_min_tokens() -> None:
    out, match = run(StopMatcher(["ca"], min_tokens=2), ["b", "c", "a"])

    assert "".join(out) == "b"
    assert match is not None


def test_tokens_without_text_count_for_min_tokens() -> None:
    assert run(StopMatcher(["a"], min_tokens=2), ["", "", "a"])[1] is not None


def test_nothing_may_follow_a_match() -> None:
    matcher = StopMatcher(["a"])
    matcher.feed("a")

    with pytest.raises(AssertionError):
        matcher.feed("b")


@settings(deadline=None)
@given(STOPS, PIECES, st.integers(0, 3), st.booleans())
def test_what_goes_out_is_what_a_look_at_the_whole_text_gives(
    stops: list[str], pieces: list[str], min_tokens: int, include: bool
) -> None:
    out, match = run(StopMatcher(stops, min_tokens=min_tokens, include_stop=include), pieces)

    text, expected = "", None
    for count, piece in enumerate(pieces, 1):
        before, text = text, text + piece
        for index, stop in enumerate(stops if count > min_tokens else []):
            start = text.find(stop, max(0, len(before) - len(stop) + 1))
            if start >= 0 and piece:
                text, expected = text[: start + len(stop) * include], StopMatch(stop, index)
                break
        if expected is not None:
            break

    assert match == expected
    assert "".join(out) == text


@settings(deadline=None)
@given(STOPS, PIECES)
def test_held_text_is_as_short_as_it_may_be(stops: list[str], pieces: list[str]) -> None:
    longest = max(len(stop.encode()) for stop in stops)
    matcher = StopMatcher(stops)
    text = sent = ""

    for piece in pieces:
        if matcher.feed(piece) is not None:
            return
        text += piece
        sent += matcher.take()
        held = len(text.encode()) - len(sent.encode())

        assert held >= min(longest - 1, len(text.encode()))
        assert held - len(text[len(sent) :][:1].encode()) < longest - 1 or held == 0


def test_held_characters_are_whole_ones_however_long_the_stop_string() -> None:
    """A long stop string of wide characters holds back as many bytes, and costs no walk."""
    matcher = StopMatcher(["\u6f22" * 20_000])
    taken = ""
    for _ in range(10_000):
        assert matcher.feed("\u00e9\U0001f642a") is None
        taken += matcher.take()

    held = matcher.finish()
    assert taken + held == "\u00e9\U0001f642a" * 10_000
    assert 60_000 - 1 <= len(held.encode()) < 60_000 + 3
