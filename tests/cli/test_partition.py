"""Expected values of most cases were taken from the reference frontend."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllmfront.cli._partition import ALIASES, partition
from vllmfront.cli._serve_flags import option_names

OWN = frozenset(option_names())


@pytest.mark.parametrize(
    ("words", "own", "engine"),
    [
        ("", "", ""),
        ("--port 1", "--port 1", ""),
        ("--tensor-parallel-size 2 --port=1 -O3", "--port=1", "--tensor-parallel-size 2 -O3"),
        ("--dtype=half --enable-lora", "", "--dtype=half --enable-lora"),
        ("--served-model-name a b --foo", "--served-model-name a b", "--foo"),
        ("--foo 1 -- --port 2", "", "--foo 1 --port 2"),
        ("--port 1 -- -- x", "--port 1", "-- x"),
        ("stray --port 3", "--port 3", "stray"),
        ("-ac x stray --port 3", "--port 3", "--attention-config x stray"),
        ("-x 3 --foo -1 --bar -a", "", "-x 3 --foo -1 --bar -a"),
        ("--max-logprobs -1", "--max-logprobs -1", ""),
        ("-tp 4 -asc=3", "--api-server-count=3", "--tensor-parallel-size 4"),
        (
            "-dp 2 -dpl 0 -dpp 99",
            "--data-parallel-size 2 --data-parallel-size-local 0 --data-parallel-rpc-port 99",
            "",
        ),
        ("-pcp 2 -dcp=2", "", "--prefill-context-parallel-size 2 --decode-context-parallel-size=2"),
        ("-O.level=3 -dpr 2", "--data-parallel-start-rank 2", "-O.level=3"),
        ("-ep", "", "--enable-expert-parallel"),
        ("--served_model_name x", "", "--served_model_name x"),
        ("--no-trust-request-chat-template", "", "--no-trust-request-chat-template"),
        ("--no-enable-ssl-refresh", "--no-enable-ssl-refresh", ""),
        ("-h3", "-h3", ""),
        ("--handshake-port 7", "--handshake-port 7", ""),
    ],
)  # fmt: skip
def test_words_go_where_the_reference_sends_them(words: str, own: str, engine: str) -> None:
    split = partition(words.split(), OWN)

    assert " ".join(split.own) == own
    assert " ".join(split.engine) == engine


@given(
    st.lists(
        st.sampled_from(
            [*ALIASES, "--port", "--foo", "1", "-1", "x y", "", "-", "-O3", "--", "-tp=3"]
        )
    )
)
def test_no_word_is_lost_or_made_up(words: list[str]) -> None:
    split = partition(words, OWN)
    separators = 1 if "--" in words else 0

    assert len(split.own) + len(split.engine) + separators == len(words)


@given(st.lists(st.sampled_from(["--port", "--foo", "1", "x", "-O3"])))
def test_splitting_again_changes_nothing(words: list[str]) -> None:
    split = partition(words, OWN)

    assert partition([*split.own, "--", *split.engine], OWN) == split
