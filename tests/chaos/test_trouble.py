from tests.chaos._trouble import AFTER, BEFORE, Exit, Outage, breaks, outages, public_id, tampered
from vllmfront.testing import FaultKind, JournalEntry


def entry(time: float, kind: FaultKind | None, *ids: str, life: int = 0) -> JournalEntry:
    return JournalEntry(rank=0, life=life, kind=kind, wall_time=time, request_ids=ids)


def test_an_engine_is_away_until_it_is_ready() -> None:
    assert outages([entry(5, None)], [], 9) == [Outage(0.0, 5)]
    assert outages([], [], 9) == [Outage(0.0, 9)]


def test_an_outage_lasts_from_its_first_sign_to_the_next_readiness() -> None:
    journal = [
        entry(5, None),
        entry(7, FaultKind.HANG),
        entry(12, None),
        entry(13, FaultKind.STALL),
        entry(14, FaultKind.DIE),
    ]

    found = outages(journal, [Exit(9.0, 0), Exit(14.1, 1)], 20)
    assert found == [Outage(0.0, 5), Outage(7, 12), Outage(14, 20)]


def test_an_exit_without_a_fault_is_an_outage_too() -> None:
    assert outages([entry(1, None), entry(4, None)], [Exit(3.0, 0)], 9) == [
        Outage(0.0, 1),
        Outage(3.0, 4),
    ]


def test_an_outage_touches_what_happens_around_it() -> None:
    outage = Outage(10, 12)

    assert outage.touches(11, 11.5)
    assert outage.touches(5, 10 - BEFORE)
    assert outage.touches(12 + AFTER, 20)
    assert not outage.touches(5, 9.5)
    assert not outage.touches(13.6, 20)


def test_requests_are_known_by_their_clients_ids() -> None:
    assert public_id("cmpl-chaos0x12-0123abcd") == "chaos0x12"
    assert public_id("2_chatcmpl-chaos3x1-0123abcd") == "chaos3x1"


def test_tampering_is_told_by_request() -> None:
    journal = [
        entry(1, FaultKind.DROP, "cmpl-a-00000000", "cmpl-b-00000001"),
        entry(2, FaultKind.GARBLE, "cmpl-b-00000001"),
        entry(3, FaultKind.SLOW, "cmpl-c-00000002"),
    ]

    assert tampered(journal) == {
        "a": frozenset({FaultKind.DROP}),
        "b": frozenset({FaultKind.DROP, FaultKind.GARBLE}),
    }


def test_a_life_breaks_once_and_each_unreadable_message_too() -> None:
    journal = [
        entry(3, FaultKind.GARBLE),
        entry(3.1, FaultKind.GARBLE),
        entry(5, FaultKind.CRASH),
        entry(8, FaultKind.STALL),
        entry(9, FaultKind.CRASH, life=2),
    ]
    exits = [Exit(5.2, 0), Exit(7, 1)]

    assert breaks(journal, exits, 0, 10) == 5
    assert breaks(journal, exits, 3.2, 6) == 3
    assert breaks(journal, exits, 6, 8.5) == 1
    assert breaks(journal, exits, 7.5, 8.5) == 0
