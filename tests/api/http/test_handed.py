"""Connections that another process accepts."""

import socket

import trio

from vllmfront.api.http import (
    HandedListener,
    HttpConfig,
    HttpRequest,
    HttpServer,
    ResponseWriter,
    duplicate_listeners,
    serve_http,
)
from vllmfront.interprocess import hand, handing_pair

REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


async def tell_client(request: HttpRequest, response: ResponseWriter) -> None:
    response.respond(200, repr(request.client).encode())


async def test_a_connection_is_served_as_if_it_had_been_accepted_here() -> None:
    giving, taking = handing_pair()
    taken: list[int] = []
    ended: list[int] = []
    with trio.fail_after(10), giving, taking:
        listener = HandedListener(taking, "main", on_taken=lambda: taken.append(1))
        with duplicate_listeners([listener]) as listeners:
            async with trio.open_nursery() as nursery:
                server: HttpServer = await nursery.start(
                    serve_http, listeners, tell_client, HttpConfig()
                )
                server.on_end = lambda: ended.append(1)
                with socket.create_server(("127.0.0.1", 0)) as accepting:
                    client = socket.create_connection(accepting.getsockname())
                    accepted, _ = accepting.accept()
                    hand(giving, accepted)
                    accepted.close()
                stream = trio.SocketStream(trio.socket.from_stdlib_socket(client))
                address = client.getsockname()
                async with stream:
                    await stream.send_all(REQUEST)
                    answer = b"".join([part async for part in stream])
                await server.wait_drained()

                assert answer.endswith(repr(address).encode())
                assert taken == ended == [1]

                giving.close()
                await trio.testing.wait_all_tasks_blocked()
                nursery.cancel_scope.cancel()
