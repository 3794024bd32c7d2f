"""The part of an update in which weights move: started, sent in pieces, finished."""

from collections.abc import Sequence

import attrs

from vllmfront.rl._fleet import Fleet
from vllmfront.rl._payload import UpdateInfo, json_safe
from vllmfront.rl._progress import Phase


@attrs.define(eq=False)
class Upload:
    """Sends weights to all servers of a fleet, which are paused for it."""

    fleet: Fleet
    owner: str
    """Whose pause has to be in force on the servers."""

    draft: bool = False
    """Whether these are weights of the draft model that speculates."""

    chunks: int = attrs.field(default=0, init=False)
    """How many pieces were begun to be sent."""

    began: bool = attrs.field(default=False, init=False)
    """Whether some server may have been told to expect weights."""

    finished: bool = attrs.field(default=False, init=False)
    """Whether all servers have all of them."""

    async def start(self) -> None:
        """Tell all servers that weights will come.

        Raises:
            CallFailed: One of them refused, or failed.
        """
        self.began = True
        route = "/start_draft_weight_update" if self.draft else "/start_weight_update"
        answers = await self.fleet.call(
            lambda server, _place: server.post(route, params=self._params, repeatable=False),
            Phase.STARTED,
        )
        answers.raise_first()

    async def send(
        self, info: UpdateInfo | None = None, *, per_server: Sequence[UpdateInfo] | None = None
    ) -> None:
        """Let all servers take one piece of the weights; returns when all have it.

        Backends that move weights beside this call, as NCCL does, want it to run while the trainer
        broadcasts: start it in a task of its own.

        Args:
            info: What the backend needs to know of the piece, as in ``/update_weights``.
            per_server: The same, for each server another one, in the order in which they were given
                to the client.

        Raises:
            CallFailed: One of them refused, or failed.
            ValueError: Neither or both are given, or there are more or fewer than servers.
        """
        infos = self._for_each(info, per_server)
        self.chunks += 1
        answers = await self.fleet.call(
            lambda server, place: server.post(
                "/update_weights",
                params=self._params,
                body={"update_info": infos[place]},
                repeatable=False,
            ),
            Phase.SENT,
            chunk=self.chunks,
        )
        answers.raise_first()

    async def finish(self, version: str | None) -> None:
        """Tell all servers that these were all; they name their weights *version* from now on.

        Raises:
            CallFailed: One of them refused, or failed.
        """
        body = None if version is None else {"weight_version": version}
        answers = await self.fleet.call(
            lambda server, _place: server.post(
                "/finish_weight_update", params=self._params, body=body, repeatable=False
            ),
            Phase.FINISHED,
        )
        answers.raise_first()
        self.finished = True

    @property
    def _params(self) -> dict[str, str]:
        return {"owner": self.owner}

    def _for_each(
        self, info: UpdateInfo | None, per_server: Sequence[UpdateInfo] | None
    ) -> list[object]:
        servers = len(self.fleet.servers)
        if (info is None) == (per_server is None):
            raise ValueError("give either info, for all servers, or per_server")
        if per_server is None:
            return [json_safe(info or {})] * servers
        if len(per_server) != servers:
            raise ValueError(f"per_server has {len(per_server)} entries for {servers} servers")
        return [json_safe(each) for each in per_server]
