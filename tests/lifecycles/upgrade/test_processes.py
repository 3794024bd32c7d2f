"""Whole upgrades: real processes, real signals, clients that would notice."""

import os
import re
import shutil
import signal
from pathlib import Path

import httpx
import pytest
import trio
import trustme

from tests.lifecycles.rig import TINY_CHAT, alive, commanded, descendants, fake_python, wait_until
from tests.lifecycles.test_deployments import free_port
from tests.lifecycles.upgrade.service import Answer, Service, open_service, wait_finished
from vllmfront.lifecycles.upgrade import UpgradeFailed


class Hammer:
    """Clients that ask again and again on connections that they keep."""

    def __init__(self, service: Service) -> None:
        self.statuses: list[int] = []
        self._service = service
        self._over = False

    async def run(self, clients: int = 3) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(clients):
                nursery.start_soon(self._ask)

    async def _ask(self) -> None:
        async with httpx.AsyncClient(base_url=self._service.http.base_url, timeout=30) as client:
            while not self._over:
                body = {"prompt": "hi", "max_tokens": 2}
                answer = await client.post("/v1/completions", json=body)
                self.statuses.append(answer.status_code)

    def stop(self) -> None:
        self._over = True


async def stop(service: Service) -> None:
    """Stop the service as an operator does, and wait until all of it is gone."""
    pid = service.pid
    assert pid is not None
    os.kill(pid, signal.SIGTERM)
    await wait_until(lambda: not any(map(alive, commanded(str(service.folder)))))
    assert not service.pid_file.exists()


async def test_no_client_notices_that_the_process_is_replaced(tmp_path: Path) -> None:
    async with open_service(tmp_path) as service:
        service.start_engine()
        await service.wait_ready()
        old = service.pid
        hammer = Hammer(service)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hammer.run)
            streams = await service.reload_amid(300, 3)
            late = await service.begin_stream(300)
            await wait_finished(*streams, late)
            assert await service.started.wait() == 0
            hammer.stop()

        assert service.pid not in {None, old}
        assert set(hammer.statuses) == {200}
        assert [each.tokens for each in (*streams, late)] == [300] * 4
        assert len({each.text for each in (*streams, late)}) == 1
        await stop(service)


@pytest.mark.slow
async def test_where_the_new_process_cannot_load_the_old_one_goes_on(tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(TINY_CHAT, model)
    tokenizer = (model / "tokenizer.json").read_bytes()
    async with open_service(tmp_path, model=model) as service:
        service.start_engine()
        await service.wait_ready()
        old = service.pid
        (model / "tokenizer.json").write_text("{")
        with pytest.raises(UpgradeFailed, match=r"gave up: .*tokenizer"):
            await service.reload()
        assert service.pid == old
        assert (await service.ask(max_tokens=2)).status_code == 200

        (model / "tokenizer.json").write_bytes(tokenizer)
        await service.reload()
        assert service.pid != old
        assert (await service.ask(max_tokens=2)).status_code == 200
        await stop(service)


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["is loading", "is taking over"])
async def test_the_new_process_is_killed_on_its_way(tmp_path: Path, stage: str) -> None:
    def kill(text: str) -> None:
        if stage in text:
            os.kill(int(text.split()[1]), signal.SIGKILL)

    async with open_service(tmp_path) as service:
        service.start_engine()
        await service.wait_ready()
        old, stream = service.pid, await service.begin_stream(400)
        with pytest.raises(UpgradeFailed, match="was killed by SIGKILL"):
            await service.reload(kill)
        await wait_finished(stream)
        assert service.pid == old
        assert stream.tokens == 400
        await service.reload()
        assert (await service.ask(max_tokens=2)).status_code == 200
        await stop(service)


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["is loading", "is taking over"])
async def test_the_old_process_is_killed_on_the_way(tmp_path: Path, stage: str) -> None:
    async with open_service(tmp_path) as service:
        service.start_engine()
        await service.wait_ready()
        old = service.pid
        assert old is not None

        def kill(text: str) -> None:
            if stage in text:
                os.kill(old, signal.SIGKILL)

        told = await service.reload(kill)
        assert told == f"process {service.pid} serves; process {old} died meanwhile"
        assert (await service.ask(max_tokens=2)).status_code == 200
        await service.reload()
        assert (await service.ask(max_tokens=2)).status_code == 200
        await stop(service)


@pytest.mark.slow
async def test_the_new_process_is_killed_while_the_old_one_drains(tmp_path: Path) -> None:
    async with open_service(tmp_path) as service:
        service.start_engine()
        await service.wait_ready()
        old = service.pid
        [stream] = await service.reload_amid(1000)
        new = await service.wait_pid(old)
        os.kill(new, signal.SIGKILL)
        await service.wait_log("this one serves again")
        assert service.pid == old
        assert (await service.ask(max_tokens=2)).status_code == 200
        await wait_finished(stream)
        assert stream.tokens == 1000
        assert alive(old or 0)
        await service.reload()
        assert (await service.ask(max_tokens=2)).status_code == 200
        await stop(service)


@pytest.mark.slow
async def test_the_old_process_is_killed_while_it_drains(tmp_path: Path) -> None:
    async with open_service(tmp_path) as service:
        service.start_engine()
        await service.wait_ready()
        old = service.pid
        assert old is not None

        async def lose() -> None:
            with pytest.raises(httpx.RemoteProtocolError):
                await service.stream(20_000, answer)

        answer = Answer()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lose)
            await answer.began.wait()
            await service.reload()
            with pytest.raises(
                UpgradeFailed, match=f"process {old} still serves what it has begun"
            ):
                await service.reload()
            os.kill(old, signal.SIGKILL)
        await service.wait_log("Aborting 1 requests of a frontend that is gone")
        assert (await service.ask(max_tokens=2)).status_code == 200
        await service.reload()
        assert (await service.ask(max_tokens=2)).status_code == 200
        await stop(service)


@pytest.mark.slow
async def test_both_processes_end_when_the_new_one_is_told_to(tmp_path: Path) -> None:
    async with open_service(tmp_path, "--shutdown-timeout", "20") as service:
        service.start_engine()
        await service.wait_ready()
        [stream] = await service.reload_amid(1000)
        await stop(service)

        assert stream.finished
        assert stream.tokens == 1000
        assert await service.started.wait() == 0


@pytest.mark.slow
async def test_a_managed_engine_is_not_restarted(tmp_path: Path) -> None:
    python = fake_python(tmp_path)
    async with open_service(tmp_path, "--python", python, external=False) as service:
        await service.wait_ready()
        engines = descendants(service.started.pid)
        for _ in range(2):
            old = service.pid
            [stream] = await service.reload_amid(300)
            await service.wait_gone(old or 0)
            await wait_finished(stream)
            assert stream.tokens == 300
        assert (await service.ask(max_tokens=2)).status_code == 200
        assert all(map(alive, engines))
        assert descendants(service.pid or 0) == []
        assert len(list((tmp_path / "ipc").iterdir())) == 4
        pid = service.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await wait_until(lambda: not any(map(alive, engines)))
        await wait_until(lambda: list((tmp_path / "ipc").iterdir()) == [])


@pytest.mark.slow
async def test_a_new_process_that_fails_late_leaves_the_engine_alone(tmp_path: Path) -> None:
    certificate = tmp_path / "both.pem"
    authority = trustme.CA()
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(certificate)
    python = fake_python(tmp_path)
    tls = ("--ssl-certfile", str(certificate))
    async with open_service(tmp_path, "--python", python, *tls, external=False) as service:
        await service.wait_log("Engine 0 is ready")
        engines = descendants(service.started.pid)
        certificate.write_text("rubbish")
        old = service.pid
        with pytest.raises(UpgradeFailed, match=r"gave up: .*certificate"):
            await service.reload()
        assert service.pid == old
        assert descendants(service.started.pid) == engines
        with pytest.raises(UpgradeFailed, match=r"gave up: .*certificate"):
            await service.reload()
        assert "is lost" not in service.log
        await stop(service)


@pytest.mark.slow
async def test_the_managed_engine_dies_while_the_old_process_drains(tmp_path: Path) -> None:
    python = fake_python(tmp_path)
    async with open_service(tmp_path, "--python", python, external=False) as service:
        await service.wait_ready()
        _reaper, engine = descendants(service.started.pid)
        [stream] = await service.reload_amid(1000)
        os.kill(engine, signal.SIGKILL)
        await wait_finished(stream)
        await service.wait_ready()
        assert stream.tokens == 1000
        assert (await service.ask(max_tokens=2)).status_code == 200
        await stop(service)


@pytest.mark.slow
async def test_ranks_come_down_as_they_are(tmp_path: Path) -> None:
    async with open_service(tmp_path, "--data-parallel-size", "3") as service:
        service.start_engine(start_rank=0, ranks=2)
        doomed = service.start_engine(start_rank=2)
        await service.wait_ready()
        doomed.cancel()
        await service.wait_log("Engine 2 is lost")
        old = service.pid
        streams = await service.reload_amid(300, 4)
        await service.wait_gone(old or 0)
        await wait_finished(*streams)
        assert [each.tokens for each in streams] == [300] * 4
        prompts = ["a", "b", "c", "d"]
        answer = await service.http.post("/v1/completions", json={"prompt": prompts})
        assert answer.status_code == 200
        service.start_engine(start_rank=2)
        await service.wait_log("Engine 2 said HELLO")
        await stop(service)


@pytest.mark.slow
async def test_a_unix_socket_stays(tmp_path: Path) -> None:
    path = tmp_path / "http"
    async with open_service(tmp_path, "--uds", str(path)) as service:
        service.http = httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(uds=str(path)), base_url="http://frontend"
        )
        service.start_engine()
        await service.wait_ready()
        for _ in range(2):
            old = service.pid
            await service.reload()
            await service.wait_gone(old or 0)
            assert (await service.ask(max_tokens=2)).status_code == 200
        assert path.exists()
        await service.http.aclose()
        await stop(service)
        assert not path.exists()


@pytest.mark.slow
async def test_several_managed_engines_come_down_and_each_is_still_restarted_by_itself(
    tmp_path: Path,
) -> None:
    words = ("--python", fake_python(tmp_path), "--data-parallel-size", "2")
    async with open_service(
        tmp_path, *words, "--engine-restart-backoff", "0.05", external=False
    ) as service:
        await service.wait_ready()
        found = re.search(r"--data-parallel-rpc-port (\d+)", service.log)
        assert found is not None
        engines = [f"tcp://127.0.0.1:{found[1]} --start-rank {rank}" for rank in (0, 1)]
        first, second = map(commanded, engines)
        old = service.pid
        streams = await service.reload_amid(300, 4)
        await wait_finished(*streams)
        await service.wait_gone(old or 0)
        assert [stream.tokens for stream in streams] == [300] * 4
        assert all(map(alive, (*first, *second)))
        os.kill(second[-1], signal.SIGKILL)
        await wait_until(lambda: commanded(engines[1]) not in ([], second))
        await service.wait_log("Engine 1 is ready")
        assert commanded(engines[0]) == first
        assert (await service.ask(max_tokens=2)).status_code == 200
        await stop(service)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--data-parallel-rank", "0"), "programs on other nodes depend on it"),
        (
            (
                *("--data-parallel-multi-port-external-lb", "--data-parallel-size-local", "2"),
                *("--data-parallel-supervisor-port", "0"),
            ),
            "it serves one port an engine",
        ),
    ],
)
async def test_where_others_count_on_the_process_it_is_not_replaced(
    tmp_path: Path, words: tuple[str, ...], reason: str
) -> None:
    python = ("--python", fake_python(tmp_path), "--data-parallel-size", "2")
    port = ("--data-parallel-rpc-port", str(free_port()))
    async with open_service(tmp_path, *python, *port, *words, external=False) as service:
        await wait_until(service.pid_file.exists)
        with pytest.raises(UpgradeFailed, match=reason):
            await service.reload()
        assert service.pid is not None
        await stop(service)
