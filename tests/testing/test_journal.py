import json
from pathlib import Path

from vllmfront.testing import Fault, FaultKind, Incident, JournalEntry, journal_line, read_journal

STALL = Fault(kind=FaultKind.STALL, seconds=1.5)


def test_a_line_says_what_happened_to_whom() -> None:
    incident = Incident(rank=1, life=2, fault=STALL, time=7.0, request_ids=("a", "b"))

    assert json.loads(journal_line(incident, 1000.0)) == {
        "rank": 1,
        "life": 2,
        "kind": "stall",
        "wall_time": 1000.0,
        "seconds": 1.5,
        "request_ids": ["a", "b"],
    }


def test_a_journal_is_read_as_far_as_it_is_written(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    ready = journal_line(Incident(rank=0, life=0, fault=None, time=1.0), 5.0)
    stall = journal_line(Incident(rank=0, life=0, fault=STALL, time=2.0), 6.0)
    journal.write_text(f"{ready}\n{stall}\n{ready[:20]}")

    assert read_journal(journal) == [
        JournalEntry(rank=0, life=0, kind=None, wall_time=5.0),
        JournalEntry(rank=0, life=0, kind=FaultKind.STALL, wall_time=6.0, seconds=1.5),
    ]


def test_there_may_be_no_journal_yet(tmp_path: Path) -> None:
    assert read_journal(tmp_path / "journal") == []
