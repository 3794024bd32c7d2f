"""The books as only the inside shows them: tasks, and the client's own."""

import trio

from tests.lifecycles.rig import Frontend, config, serving, simulated_engine, wait_until

CLIENTS = 50


async def test_no_task_is_left_by_clients_that_leave() -> None:
    async with serving(config()) as frontend, simulated_engine(frontend, step_time=0.002):
        await frontend.generate(max_tokens=1)
        await frontend.http.aclose()
        port = _port(frontend)
        await trio.testing.wait_all_tasks_blocked(0.05)
        base = trio.lowlevel.current_statistics().tasks_living

        async def leave(number: int) -> None:
            stream = await trio.open_tcp_stream("127.0.0.1", port)
            body = b'{"prompt":"hi","max_tokens":30000,"ignore_eos":true,"stream":true}'
            head = (
                b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                b"Content-Length: %d\r\n\r\n" % len(body)
            )
            await stream.send_all((head + body)[: 20 * (number % 20 + 1)])
            if number % 2:
                with trio.move_on_after(0.05):
                    await stream.receive_some(100)
            await stream.aclose()

        async with trio.open_nursery() as nursery:
            for number in range(CLIENTS):
                nursery.start_soon(leave, number)
        await wait_until(lambda: trio.lowlevel.current_statistics().tasks_living <= base)


def _port(frontend: Frontend) -> int:
    assert frontend.serving is not None
    port: int = frontend.serving.listeners[0].socket.getsockname()[1]
    return port
