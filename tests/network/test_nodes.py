"""Three hosts, and a network between them that fails: what clients see of it."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio

from tests.lifecycles.rig import fake_python
from tests.network.hosts import Host, open_hosts
from tests.network.nodes import PORT, Answer, Node, kill, open_engines, open_node

pytestmark = pytest.mark.slow

TOKENS = 1200
"""Of streams that run while something is broken: twelve seconds, and what they wait."""

NOTICED = 10.0
"""Seconds within which a host that vanishes must be missed."""


@attrs.define
class Deployment:
    """One frontend on the first host, an engine on each."""

    hosts: Sequence[Host]
    node: Node
    engines: list[trio.Process]
    text: str
    """What every stream has to be."""


@asynccontextmanager
async def internal(folder: Path) -> AsyncGenerator[Deployment]:
    """Run one frontend that balances engines on three hosts, and ten minutes for everything."""
    with trio.fail_after(600):
        async with open_hosts(3) as hosts, AsyncExitStack() as stack:
            arguments = (
                *("--data-parallel-address", hosts[0].address),
                *("--data-parallel-rpc-port", str(PORT), "--data-parallel-size", "3"),
                *("--data-parallel-size-local", "0"),
            )
            node = await stack.enter_async_context(open_node(folder, hosts[0], *arguments))
            engines = [
                await stack.enter_async_context(open_engines(folder, host, hosts[0], rank))
                for rank, host in enumerate(hosts)
            ]
            await node.wait_ready()
            yield Deployment(hosts, node, engines, await node.text(TOKENS))


async def test_a_link_that_is_cut_costs_a_pause_of_those_behind_it(tmp_path: Path) -> None:
    async with internal(tmp_path) as deployment, trio.open_nursery() as nursery:
        node, far = deployment.node, deployment.hosts[2]
        named = [await node.begin_stream(nursery, TOKENS, rank) for rank in range(3)]
        others = [await node.begin_stream(nursery, TOKENS) for _ in range(3)]
        far.pull_cable()
        assert await node.wait_log("Engine 2 is lost") < NOTICED
        # The others take what comes meanwhile.
        assert len(await node.text(5)) > 0
        await wait_finished(*named[:2], *others)
        assert not named[2].finished
        far.plug_in()
        await node.wait_log("Engine 2 is connected again", seconds=90)
        await wait_finished(named[2])

        check(deployment, *named, *others)
        assert max(each.longest_gap for each in named[:2]) < 3
        assert node.log.count("said HELLO") == 3
        assert await node.text(TOKENS, rank=2) == deployment.text


async def test_a_link_that_stalls_for_a_while_costs_nobody_anything(tmp_path: Path) -> None:
    async with internal(tmp_path) as deployment, trio.open_nursery() as nursery:
        node, far = deployment.node, deployment.hosts[2]
        streams = [await node.begin_stream(nursery, TOKENS, rank) for rank in range(3)]
        far.stall()
        await trio.sleep(3)
        far.go_on()
        far.delay = 0.3
        await wait_finished(*streams)

        check(deployment, *streams)
        assert streams[2].longest_gap > 2
        assert max(each.longest_gap for each in streams[:2]) < 2
        assert "is lost" not in node.log


async def test_a_link_that_stalls_for_long_is_as_good_as_cut(tmp_path: Path) -> None:
    async with internal(tmp_path) as deployment, trio.open_nursery() as nursery:
        node, far = deployment.node, deployment.hosts[2]
        named = await node.begin_stream(nursery, TOKENS, rank=2)
        others = [await node.begin_stream(nursery, TOKENS) for _ in range(3)]
        far.stall()
        assert await node.wait_log("Engine 2 is lost") < NOTICED
        await wait_finished(*others)
        far.go_on()
        await node.wait_log("Engine 2 is connected again", seconds=120)
        await wait_finished(named)

        check(deployment, named, *others)


async def test_a_host_that_is_gone_is_replaced_by_another(tmp_path: Path) -> None:
    async with internal(tmp_path) as deployment, trio.open_nursery() as nursery:
        node, far = deployment.node, deployment.hosts[2]
        streams = [await node.begin_stream(nursery, TOKENS, rank) for rank in (0, 2)]
        far.pull_cable()
        await kill(deployment.engines[2])
        assert await node.wait_log("Engine 2 is lost") < NOTICED
        async with open_engines(tmp_path, deployment.hosts[1], deployment.hosts[0], 2):
            await wait_finished(*streams)

            check(deployment, *streams)
            assert node.log.count("said HELLO") == 4
            far.plug_in()
            assert await node.text(TOKENS, rank=2) == deployment.text


async def test_waves_of_engines_that_step_together_never_hang(tmp_path: Path) -> None:
    with trio.fail_after(600):
        async with open_hosts(2) as (near, far), AsyncExitStack() as stack:
            arguments = (
                *("--data-parallel-address", near.address, "--data-parallel-size-local", "0"),
                *("--data-parallel-rpc-port", str(PORT), "--data-parallel-size", "2"),
                *("--hf-overrides", '{"num_experts": 8}'),
            )
            node = await stack.enter_async_context(open_node(tmp_path, near, *arguments))
            await stack.enter_async_context(
                open_engines(tmp_path, far, near, 0, "--ranks", "2", "--lockstep")
            )
            await node.wait_ready()
            text = await node.text(300)
            for seconds, lost in ((2.0, 0), (12.0, 1), (1.0, 1), (12.0, 2)):
                async with trio.open_nursery() as nursery:
                    streams = [await node.begin_stream(nursery, 300, rank) for rank in (0, 1, 0)]
                    far.stall()
                    await trio.sleep(seconds)
                    far.go_on()
                    await wait_finished(*streams)
                assert [each.text for each in streams] == [text] * 3
                for rank in (0, 1):
                    # Idle engines are woken, all of them, by a request for any.
                    await trio.sleep(0.3)
                    assert await node.text(300, rank) == text
                assert node.log.count("Engine 0 is lost") == lost
            assert node.log.count("said HELLO") == 2


@asynccontextmanager
async def hybrid_node(folder: Path, hosts: Sequence[Host], rank: int) -> AsyncGenerator[Node]:
    """Run a frontend that starts an engine on its own host, and serves that one."""
    place = folder / f"python-{rank}"
    place.mkdir(exist_ok=True)
    arguments = (
        *("--python", fake_python(place), "--data-parallel-hybrid-lb"),
        *("--data-parallel-size", str(len(hosts)), "--data-parallel-size-local", "1"),
        *("--data-parallel-start-rank", str(rank)),
        *("--data-parallel-address", hosts[0].address, "--data-parallel-rpc-port", str(PORT)),
    )
    async with open_node(folder, hosts[rank], *arguments) as node:
        yield node


async def test_nodes_that_balance_their_own_engines_do_without_each_other(tmp_path: Path) -> None:
    with trio.fail_after(600):
        async with open_hosts(3) as hosts, AsyncExitStack() as stack:
            nodes = [
                await stack.enter_async_context(hybrid_node(tmp_path, hosts, rank))
                for rank in range(3)
            ]
            for node in nodes:
                await node.wait_ready()
            text = await nodes[0].text(TOKENS)
            async with trio.open_nursery() as nursery:
                streams = [await node.begin_stream(nursery, TOKENS) for node in nodes]
                hosts[2].stall()
                # Nobody has to hear of the others for this.
                await wait_finished(*streams)
                await trio.sleep(NOTICED)
                assert [await node.text(TOKENS) for node in nodes] == [text] * 3
                hosts[2].go_on()
            assert [each.text for each in streams] == [text] * 3
            assert not any(each.error for each in streams)

            await kill(nodes[2].process)
            assert [await node.text(TOKENS) for node in nodes[:2]] == [text] * 2
            async with hybrid_node(tmp_path, hosts, 2) as again:
                await again.wait_ready()
                assert await again.text(TOKENS) == text
            assert not any("Traceback" in node.log for node in nodes)


async def wait_finished(*answers: Answer) -> None:
    with trio.fail_after(120):
        while not all(each.finished for each in answers):  # noqa: ASYNC110 (no event for all)
            await trio.sleep(0.05)


def check(deployment: Deployment, *answers: Answer) -> None:
    """Make sure that the clients noticed nothing but the time."""
    assert [each.error for each in answers] == [""] * len(answers)
    assert {each.text for each in answers} == {deployment.text}
    assert "Traceback" not in deployment.node.log
