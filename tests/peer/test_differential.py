"""The same requests to the peer and to us: equal answers, or a deviation with a reason."""

import json
import re

import httpx
import pytest

from tests.peer.deviations import deviation_of
from tests.peer.normalise import Answer, as_peer, normalise
from tests.peer.requests import Case, all_cases

pytestmark = pytest.mark.peer
ANSWER_SECONDS = 60.0
TRIES = 3


@pytest.mark.parametrize("case", all_cases(), ids=lambda case: case.name)
def test_answers_as_the_peer_does(case: Case, peer_url: str, our_url: str) -> None:
    theirs, ours = ask_both(case, peer_url, our_url)
    deviation = deviation_of(case.name)

    if deviation is None:
        assert ours == theirs
    elif deviation.message_only:
        assert (ours.status, without_message(ours)) == (theirs.status, without_message(theirs))
        assert ours != theirs, f"no longer deviates: take it off the list ({deviation.reason})"
    else:
        assert ours != theirs, f"no longer deviates: take it off the list ({deviation.reason})"


def ask_both(case: Case, peer_url: str, our_url: str) -> tuple[Answer, Answer]:
    """Ask until the answers agree: on a busy machine either side may merge stream events."""
    for _ in range(TRIES):
        theirs, ours = ask(peer_url, case), as_peer(ask(our_url, case))
        if theirs == ours or not isinstance(theirs.body, list):
            break
    return theirs, ours


def ask(url: str, case: Case) -> Answer:
    content = case.raw if case.raw is not None else json.dumps(case.body).encode()
    headers = {"content-type": "application/json", **case.headers}
    response = httpx.request(
        case.method,
        url + case.path,
        content=b"" if case.method == "GET" else content,
        headers={k: v for k, v in headers.items() if v},
        timeout=ANSWER_SECONDS,
    )
    return normalise(
        response.status_code, response.headers.get("content-type", ""), response.content
    )


def without_message(answer: Answer) -> str:
    return re.sub(r'"message": "(?:[^"\\]|\\.)*"', '"message": ""', json.dumps(answer.body))
