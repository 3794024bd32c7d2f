"""Who gathers what sinks make: told before the first is called and after the last."""

import attrs
import trio

from tests.engine._helpers import ids, open_engines, request
from vllmfront.engine import EngineOutput, FinishReason
from vllmfront.engine.client.reading._reader import MAX_PUSHES
from vllmfront.errors import VllmFrontError


@attrs.define
class Diary:
    """An observer, and sinks that it hears of."""

    entries: list[str] = attrs.field(factory=list)
    observed: bool = False
    unobserved_pushes: int = 0
    pushes: int = 0
    complete: trio.Event = attrs.field(factory=trio.Event)

    def begin(self) -> None:
        assert not self.observed
        self.observed = True
        self.entries.append("begin")

    def end(self) -> None:
        assert self.observed
        self.observed = False
        self.entries.append("end")

    def on_tokens(self, _token_ids: list[int]) -> bool:
        self.pushes += 1
        self.unobserved_pushes += not self.observed
        return False

    def on_output(self, output: EngineOutput) -> bool:
        self.on_tokens(output.new_token_ids)
        self.complete.set()
        return False

    def on_error(self, _error: VllmFrontError) -> None:
        """Nothing to note."""


async def test_an_observer_knows_of_all_pushes_and_of_the_pauses_between_them() -> None:
    diary = Diary()
    others_ran_unobserved: list[bool] = []

    async def look() -> None:
        while True:
            others_ran_unobserved.append(not diary.observed)
            await trio.lowlevel.checkpoint()

    async with open_engines() as (client, [engine]), trio.open_nursery() as nursery:
        with client.pushes_observed_by(diary):
            streams = [client.submit(request(f"chatcmpl-{n}"), [diary]) for n in range(300)]
            for stream in streams:
                await stream.__aenter__()
            adds = [await engine.receive_add() for _ in streams]
            nursery.start_soon(look)
            diary.entries.clear()
            *names, last = ids(adds)
            length = 1
            rows = [[name, [7]] for name in names]
            engine.send_rows([*rows, [last, [7], None, None, None, length]])
            with trio.fail_after(5):
                await diary.complete.wait()
            nursery.cancel_scope.cancel()

        assert len(streams) > MAX_PUSHES
        assert diary.entries[:4] == ["begin", "end", "begin", "end"]
        assert diary.pushes == len(streams)
        assert diary.unobserved_pushes == 0
        assert all(others_ran_unobserved)
        client.abort_all()


async def test_an_observer_that_has_left_is_told_nothing() -> None:
    diary = Diary()
    async with open_engines() as (client, [engine]):
        with client.pushes_observed_by(diary):
            pass
        async with client.submit(request("chatcmpl-1"), [diary]):
            add = await engine.receive_add()
            engine.send_tokens(add.internal_id, [5])
            engine.send_output(
                add.internal_id, EngineOutput(new_token_ids=[6], finish_reason=FinishReason.LENGTH)
            )
            with trio.fail_after(5):
                await diary.complete.wait()

        assert diary.pushes
        assert diary.entries == []
