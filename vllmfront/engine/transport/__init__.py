"""ZeroMQ sockets and addresses for Trio: who owns a socket waits, everybody may send."""

from vllmfront.engine.transport._addresses import (
    address_towards,
    adopted_address,
    host_of,
    ipc_address,
    resolve_host,
    tcp_address,
)
from vllmfront.engine.transport._dealer import open_dealer
from vllmfront.engine.transport._errors import PeerGone
from vllmfront.engine.transport._listener import SharedListener, listen_ipc, listen_tcp
from vllmfront.engine.transport._monitor import PeerChange, PeerEvent, PeerMonitor, open_monitor
from vllmfront.engine.transport._ports import choose_ports, listen_lasting
from vllmfront.engine.transport._pubsub import (
    MessagePublisher,
    MessageSubscriber,
    open_publisher,
    open_subscriber,
)
from vllmfront.engine.transport._sockets import (
    Message,
    MessageReceiver,
    MessageRouter,
    TwoWaySocket,
    open_context,
    open_receiver,
    open_router,
)
from vllmfront.engine.transport._stale import remove_stale_sockets

__all__ = [
    "Message",
    "MessagePublisher",
    "MessageReceiver",
    "MessageRouter",
    "MessageSubscriber",
    "PeerChange",
    "PeerEvent",
    "PeerGone",
    "PeerMonitor",
    "SharedListener",
    "TwoWaySocket",
    "address_towards",
    "adopted_address",
    "choose_ports",
    "host_of",
    "ipc_address",
    "listen_ipc",
    "listen_lasting",
    "listen_tcp",
    "open_context",
    "open_dealer",
    "open_monitor",
    "open_publisher",
    "open_receiver",
    "open_router",
    "open_subscriber",
    "remove_stale_sockets",
    "resolve_host",
    "tcp_address",
]
