"""A client's parts, connected."""

from collections.abc import Callable, Sequence
from functools import partial

import attrs

from vllmfront.engine.client._beginning import (
    Task,
    begin_first,
    begin_next,
    make_attachment,
    make_recorder,
    make_succession,
    make_worker_slots,
)
from vllmfront.engine.client._client import EngineClient
from vllmfront.engine.client._config import EngineClientConfig
from vllmfront.engine.client._following import Following
from vllmfront.engine.client._wave_link import Coordination, choose_coordination
from vllmfront.engine.client.entrance import (
    ClientSockets,
    Inheritance,
    guest_tasks,
    make_reception,
    open_introduction,
)
from vllmfront.engine.client.membership import Membership, Setups
from vllmfront.engine.client.orders import Adapters, Pauses, Sleeping, UtilityCalls
from vllmfront.engine.client.reading import (
    EngineLink,
    OutputConnections,
    OutputInbox,
    OutputReader,
    Reconnections,
    StallWatch,
)
from vllmfront.engine.client.requests import (
    Books,
    Dispatch,
    IdSource,
    Orphans,
    Preparation,
    Recovery,
    RequestChecks,
    WaitingRoom,
    first_id_after,
)
from vllmfront.engine.coordinator import Coordinator, CoordinatorSubscription
from vllmfront.engine.handshake import (
    Roster,
    take_registration,
)
from vllmfront.engine.metrics import EngineMetrics
from vllmfront.engine.pause import HoldGate
from vllmfront.engine.routing import RankLoad, make_routing
from vllmfront.engine.transport import Message


@attrs.frozen(kw_only=True)
class ClientParts:
    """A client, and what its block needs of its insides."""

    client: EngineClient
    books: Books
    dispatch: Dispatch
    tasks: Sequence[Task]
    """They run as long as the client is open."""


def assemble(
    config: EngineClientConfig,
    metrics: EngineMetrics,
    sockets: ClientSockets,
    inheritance: Inheritance | None,
) -> ClientParts:
    """Connect the parts of a client; nothing runs yet."""
    roster = Roster(config.ranks, owns_handshake=sockets.entrance is not None, others=config.others)
    membership = Membership(
        config.ranks,
        metrics,
        sockets.inputs,
        watches_loading=config.watch_loading,
        loads=config.loads or (lambda _: RankLoad(config.sharers)),
    )
    calls = UtilityCalls(membership, client_index=sockets.slot)
    adapters = Adapters(membership, calls, load_seconds=config.adapter_seconds)
    adapters.adopt(config.adapters if inheritance is None else ())
    checks = RequestChecks(config.limits, membership)
    books = Books(membership, metrics, WaitingRoom(config.recovery_wait))
    first_id = config.first_id if sockets.saved is None else first_id_after(sockets.saved.first_id)
    ids = IdSource(randomize=config.randomize_ids, first=first_id)
    gate = HoldGate()
    waves = _coordination(config, sockets, membership)
    gate.on_change(lambda: waves.hold(held=gate.closed))
    routing = make_routing(config.routing, shared=config.follows or config.sharers > 1)
    dispatch = Dispatch(
        books,
        membership,
        ids,
        gate,
        waves=waves,
        routing=routing,
        client_index=sockets.slot,
    )
    recovery = Recovery(books, dispatch, membership, checks, gate, retries=config.request_retries)
    pauses = Pauses(
        gate, calls, membership, books, dispatch, lease_action=config.pause_lease_action
    )
    stalls = StallWatch(
        membership,
        calls,
        stall_after=config.stall_timeout,
        lose_after=config.stall_restart,
        held=lambda: gate.closed,
    )
    connections = OutputConnections(
        sockets.output_monitor, membership, others=frozenset(config.others)
    )
    inbox = OutputInbox(
        sockets.outputs,
        metrics=metrics,
        calls=calls,
        membership=membership,
        connections=connections,
        reports=len(config.ranks) > 1 or config.loads is not None,
    )
    attachment = make_attachment(sockets, roster, membership, calls)
    recorder = make_recorder(sockets, ids, membership, attachment)
    introduction, directory = open_introduction(config, sockets, membership)
    succession = make_succession(
        sockets,
        roster,
        membership,
        inbox,
        recorder=recorder,
        reception=make_reception(
            config,
            sockets,
            roster,
            membership,
            coordinator=waves if isinstance(waves, Coordinator) else None,
            introduction=introduction,
            directory=directory,
        ),
    )
    workers = make_worker_slots(config, sockets, inbox, membership)
    following = None
    register: Callable[[Message], int] = partial(
        take_registration, roster=roster, members=membership
    )
    if config.follows:
        following = Following(membership)
        register = following.take_registration
        books.on_stranger = Orphans(membership, ids).note
    reader = OutputReader(inbox, books, membership)
    tasks: list[Task] = [
        *_link_tasks(sockets, register, membership, reader),
        connections.serve,
        Setups(membership).serve,
        adapters.serve,
        recovery.serve,
        pauses.serve,
        stalls.serve,
        partial(books.deadlines.serve, books.expire),
        *(() if succession is None else succession.tasks),
        *(() if workers is None else workers.tasks),
        *(() if attachment is None else (attachment.serve,)),
        *_wave_tasks(waves, sockets),
        *guest_tasks(config, sockets, membership, introduction),
    ]
    if attachment is not None and recorder is not None:
        attachment.begin(recorder.note)
    if following is not None:
        tasks.append(following.serve)
    elif inheritance is not None:
        assert succession is not None
        tasks.append(begin_next(config, roster, membership, succession, inheritance))
        adapters.inherit(inheritance.legacy.adapters, inheritance.legacy.last_adapter_id)
    else:
        tasks.append(
            begin_first(
                config, roster, membership, succession, attachment, introduction=introduction
            )
        )
    client = EngineClient(
        adapters=adapters,
        books=books,
        calls=calls,
        checks=checks,
        dispatch=dispatch,
        gate=gate,
        introduction=introduction,
        membership=membership,
        metrics=metrics,
        pauses=pauses,
        preparation=Preparation(
            checks, dispatch, membership, metrics, continuation=config.continuation
        ),
        reader=reader,
        recorder=recorder,
        roster=roster,
        sleeping=Sleeping(gate, calls, membership, pauses, adapters),
        succession=succession,
        following=following,
        worker_slots=workers,
        waves=waves,
    )
    return ClientParts(client=client, books=books, dispatch=dispatch, tasks=tasks)


def _link_tasks(
    sockets: ClientSockets,
    register: Callable[[Message], int],
    membership: Membership,
    reader: OutputReader,
) -> list[Task]:
    """Return what listens to the engines, and takes note of who comes and goes."""
    reconnections = Reconnections(membership)
    link = EngineLink(
        sockets.inputs,
        sockets.input_monitor,
        register=register,
        membership=membership,
        reader=reader,
        reconnections=reconnections,
    )
    return [
        reader.serve,
        link.serve_registrations,
        link.serve_departures,
        link.serve_doubts,
        reconnections.serve,
    ]


def _coordination(
    config: EngineClientConfig, sockets: ClientSockets, membership: Membership
) -> Coordination:
    entrance, deployment = sockets.entrance, config.deployment
    first = deployment is None or deployment.first_frontend is None
    return choose_coordination(
        membership,
        None if entrance is None else entrance.coordinator,
        owns_handshake=entrance is not None and first,
        engine_count=config.start_rank + config.engine_count + len(config.others),
        address=config.coordinator_address,
    )


def _wave_tasks(waves: Coordination, sockets: ClientSockets) -> list[Task]:
    """Return what follows the coordinator of somebody else; our own goes with the handshake."""
    if isinstance(waves, CoordinatorSubscription):
        return [partial(waves.serve, sockets.context)]
    return []
