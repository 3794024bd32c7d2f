"""Fakes and faults that tests may use, here and in projects that build on this one."""

from vllmfront.testing._clients import (
    ClientFault,
    ClientFaultKind,
    Exchange,
    HttpCall,
    exchange,
)
from vllmfront.testing._fake_engine import REGISTRATION, FakeEngine
from vllmfront.testing._fault import AT_START, DEADLY, TAMPERING, Fault, FaultKind, Moment
from vllmfront.testing._faulty_rim import FaultyRim, Incident, Observer, faulty_rims
from vllmfront.testing._journal import JournalEntry, journal_line, read_journal
from vllmfront.testing._plan import FaultPlan, Odds, load_plan
from vllmfront.testing._processes import (
    FlakyProgram,
    ProcessFault,
    ProcessFaultKind,
    kill,
    stopped,
    write_program,
    write_python,
)
from vllmfront.testing._supervisor import (
    SupervisorPlan,
    SupervisorStandIn,
    open_supervisor,
    supervised_args,
)

__all__ = [
    "AT_START",
    "DEADLY",
    "REGISTRATION",
    "TAMPERING",
    "ClientFault",
    "ClientFaultKind",
    "Exchange",
    "FakeEngine",
    "Fault",
    "FaultKind",
    "FaultPlan",
    "FaultyRim",
    "FlakyProgram",
    "HttpCall",
    "Incident",
    "JournalEntry",
    "Moment",
    "Observer",
    "Odds",
    "ProcessFault",
    "ProcessFaultKind",
    "SupervisorPlan",
    "SupervisorStandIn",
    "exchange",
    "faulty_rims",
    "journal_line",
    "kill",
    "load_plan",
    "open_supervisor",
    "read_journal",
    "stopped",
    "supervised_args",
    "write_program",
    "write_python",
]
