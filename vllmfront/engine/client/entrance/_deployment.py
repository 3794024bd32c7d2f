"""A client as one of several of a deployment: what engines are told about all of them."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

import attrs

from vllmfront.engine.client._config import EngineClientConfig
from vllmfront.engine.client.entrance._client_sockets import ClientSockets
from vllmfront.engine.client.entrance._entrance import Entrance
from vllmfront.engine.client.entrance._introduction import Guest, Introduction
from vllmfront.engine.client.entrance._reception import Reception
from vllmfront.engine.client.membership import Membership
from vllmfront.engine.coordinator import Coordinator
from vllmfront.engine.handshake import Directory, DirectoryConfig, Epochs, Roster, identity_of
from vllmfront.engine.transport import MessageRouter, PeerGone, choose_ports, host_of
from vllmfront.engine.wire import FrontendHello, encode_executor_failed
from vllmfront.errors import EngineDied

_LOGGER = logging.getLogger(__name__)

_GROUPS = 6
"""Ports that engines of one epoch get: as many as vLLM's own launcher reserves."""


def _make_directory(
    config: EngineClientConfig,
    entrance: Entrance,
    inputs: MessageRouter,
    membership: Membership,
) -> Directory:
    """Return what engines are told that say HELLO at *entrance*."""
    deployment = config.deployment
    size = config.engine_count if deployment is None else deployment.size
    about = DirectoryConfig(size=size, count=config.engine_count, lockstep=config.coordinated)
    addresses, coordinator = entrance.addresses(), entrance.coordinator_addresses()
    if deployment is None or not deployment.lockstep:
        return Directory(about, addresses, coordinator=coordinator)
    bound = host_of(entrance.handshake.address)[0]
    gathering = _Gathering(
        size=size,
        host=entrance.advertised_host,
        bind_host=bound,
        inputs=inputs,
        membership=membership,
    )
    epochs = Epochs(gathering.settle, gathering.end)
    membership.on_loss(lambda engine: None if membership.ending else epochs.lose(engine.rank))
    return Directory(
        about,
        addresses,
        coordinator=coordinator,
        parallel_config=epochs.join,
        on_lost=epochs.lose,
        told=lambda: epochs.told,
    )


def open_introduction(
    config: EngineClientConfig, sockets: ClientSockets, membership: Membership
) -> tuple[Introduction, Directory | None]:
    """Return whether all frontends know of each other, and what engines are told by ours."""
    deployment = config.deployment
    if deployment is not None and deployment.first_frontend is not None:
        return Introduction(first_frontend=deployment.first_frontend), None
    if sockets.entrance is None:
        return Introduction(), None
    directory = _make_directory(config, sockets.entrance, sockets.inputs, membership)
    return Introduction(directory.missing()), directory


def make_reception(
    config: EngineClientConfig,
    sockets: ClientSockets,
    roster: Roster,
    membership: Membership,
    *,
    coordinator: Coordinator | None,
    introduction: Introduction,
    directory: Directory | None,
) -> Reception | None:
    """Return what answers engines that say HELLO; None where that is the business of others."""
    if sockets.entrance is None or directory is None:
        return None
    return Reception(
        sockets.context,
        sockets.entrance,
        roster=roster,
        others=Roster(config.others) if config.others else None,
        directory=directory,
        members=membership,
        coordinator=coordinator,
        introduction=introduction,
    )


def guest_tasks(
    config: EngineClientConfig,
    sockets: ClientSockets,
    membership: Membership,
    introduction: Introduction,
) -> list[Callable[[], Awaitable[None]]]:
    """Return what makes us known to the first frontend of the deployment, if that is another."""
    deployment, addresses = config.deployment, sockets.guest
    if deployment is None or deployment.first_frontend is None or addresses is None:
        return []
    hello = FrontendHello(
        start_rank=config.start_rank,
        count=config.engine_count,
        size=deployment.size,
        inputs=addresses.inputs,
        outputs=addresses.outputs,
        lockstep=deployment.lockstep,
    )
    guest = Guest(
        sockets.context, deployment.first_frontend, hello, introduction, membership=membership
    )
    return [guest.serve]


@attrs.frozen(kw_only=True)
class _Gathering:
    """Where engines find each other that step together; engine 0, on this node, listens there."""

    size: int
    host: str
    bind_host: str
    inputs: MessageRouter
    membership: Membership

    def settle(self) -> Mapping[str, object]:
        """Return where the engines of the next epoch find each other."""
        first, *others = choose_ports(self.bind_host, _GROUPS)
        return {
            "data_parallel_master_ip": self.host,
            "data_parallel_master_port": first,
            "_data_parallel_master_port_list": others,
            "data_parallel_size": self.size,
        }

    def end(self, ranks: Sequence[int]) -> None:
        """End engines that wait for one which is gone."""
        for rank in ranks:
            _LOGGER.warning("Engine %d has to start anew, as one that it steps together with", rank)
            try:
                self.inputs.send_nowait(identity_of(rank), encode_executor_failed())
            except PeerGone:
                # It loads, and would wait for the others: whoever runs it has to end it.
                self._lose(rank)

    def _lose(self, rank: int) -> None:
        """Give up *rank* where it is ours; other frontends see that it is not told any more."""
        engine = self.membership.ranks.get(rank)
        if engine is not None:
            error = EngineDied(f"engine {rank} steps together with one that is gone")
            self.membership.lose(engine, error)
