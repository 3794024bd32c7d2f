"""Connections that one process accepts and another serves."""

import socket

import pytest

from vllmfront.interprocess import hand, handing_pair, take


def test_connections_come_in_order_and_live_on_without_who_accepted_them() -> None:
    giving, taking = handing_pair()
    with giving, taking:
        clients = []
        for letter in b"ab":
            client, served = socket.socketpair()
            hand(giving, served)
            served.close()
            client.sendall(bytes([letter]))
            clients.append(client)
        taken = [take(taking), take(taking)]
        with pytest.raises(BlockingIOError):
            take(taking)

        assert [each.recv(1) for each in taken if each is not None] == [b"a", b"b"]

        for each in (*clients, *taken):
            assert each is not None
            each.close()


def test_the_end_is_told_after_what_was_handed_over() -> None:
    giving, taking = handing_pair()
    client, served = socket.socketpair()
    with taking, client, served:
        hand(giving, served)
        giving.close()
        taken = take(taking)

        assert taken is not None
        assert take(taking) is None

        taken.close()


def test_one_who_takes_nothing_holds_up_nobody() -> None:
    giving, taking = handing_pair()
    client, served = socket.socketpair()
    handed = 0
    with giving, taking, client, served:
        with pytest.raises(BlockingIOError):
            while handed < 100_000:
                hand(giving, served)
                handed += 1

        assert 100 < handed < 100_000
