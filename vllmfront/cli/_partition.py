"""Which words of ``serve`` are ours and which are the Python engine's: pure.

Words are grouped into chunks, an option-like word and what follows up to the next one. A chunk
whose head is an option of ours stays; every other chunk goes to the engine, in order, ahead of
what stands behind an explicit ``--``. The engine's own argument parser has the last word there.
"""

import re
from collections.abc import Collection, Iterable, Sequence

import attrs

ALIASES = {
    "-asc": "--api-server-count",
    "-pp": "--pipeline-parallel-size",
    "-tp": "--tensor-parallel-size",
    "-dcp": "--decode-context-parallel-size",
    "-pcp": "--prefill-context-parallel-size",
    "-dp": "--data-parallel-size",
    "-dpn": "--data-parallel-rank",
    "-dpr": "--data-parallel-start-rank",
    "-dpl": "--data-parallel-size-local",
    "-dpa": "--data-parallel-address",
    "-dpp": "--data-parallel-rpc-port",
    "-dpb": "--data-parallel-backend",
    "-dph": "--data-parallel-hybrid-lb",
    "-dpe": "--data-parallel-external-lb",
    "-ep": "--enable-expert-parallel",
    "-cc": "--compilation-config",
    "-ac": "--attention-config",
}
"""The engine's single-dash names of several letters; those that mean ours become ours."""

_OPTION = re.compile(r"--?[A-Za-z]")


@attrs.frozen
class Partition:
    """A command line, split."""

    own: Sequence[str]
    engine: Sequence[str]


def partition(words: Sequence[str], own_options: Collection[str]) -> Partition:
    """Split *words*, which follow the model.

    Args:
        words: All of them, with the explicit ``--``, if any.
        own_options: Our options by their long names, ``--`` included.
    """
    before, after = _split_at_separator(words)
    own: list[str] = []
    engine: list[str] = []
    for chunk in _chunks(map(_long_form, before)):
        (own if _is_own(chunk[0], own_options) else engine).extend(chunk)
    return Partition(tuple(own), (*engine, *after))


def _split_at_separator(words: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    if "--" not in words:
        return words, ()
    at = words.index("--")
    return words[:at], words[at + 1 :]


def _long_form(word: str) -> str:
    name, equals, value = word.partition("=")
    return f"{ALIASES[name]}{equals}{value}" if name in ALIASES else word


def _chunks(words: Iterable[str]) -> list[list[str]]:
    chunks: list[list[str]] = []
    for word in words:
        if _OPTION.match(word) or not chunks:
            chunks.append([])
        chunks[-1].append(word)
    return chunks


def _is_own(head: str, own_options: Collection[str]) -> bool:
    # Our only short option, -h, may have others glued to it.
    return head.partition("=")[0] in own_options or bool(re.match(r"-h", head))
