"""Names, ids and uses of adapters."""

import pytest

from vllmfront.engine import LoraRequest
from vllmfront.engine.client.membership._adapter_table import AdapterTable


def lora(name: str, number: int, path: str = "/p") -> LoraRequest:
    return LoraRequest(name=name, int_id=number, path=path)


def test_ids_count_up_and_are_never_used_again() -> None:
    table = AdapterTable()
    table.serve(lora("a", table.new_id()))
    table.withdraw("a")
    table.serve(lora("c", 7))

    assert table.new_id() == 8


def test_a_name_leads_to_the_adapter_served_last() -> None:
    table = AdapterTable()
    first, second = lora("a", 1), lora("a", 1, "/q")
    table.serve(first)
    assert table.find("a") is first
    assert table.holds(first)

    table.serve(second)

    assert table.find("a") is second
    assert not table.holds(first), "it was loaded anew in place"
    assert table.served == table.held == (second,)
    assert table.take_idle() == []


def test_a_withdrawn_adapter_is_held_as_long_as_it_is_used() -> None:
    table, told = AdapterTable(), list[str]()
    table.on_idle(lambda: told.append("idle"))
    adapter = lora("a", 1)
    table.serve(adapter)
    for _ in range(2):
        table.begin(adapter)

    assert table.withdraw("a") is adapter
    assert table.find("a") is None
    table.end(adapter)
    assert (table.ids, table.uses(1), told) == ({1}, 1, [])
    table.end(adapter)

    assert (table.ids, table.uses(1), told) == (set(), 0, ["idle"])
    assert table.take_idle() == [1]
    assert table.take_idle() == []


def test_an_unused_adapter_is_idle_at_once_when_withdrawn() -> None:
    table = AdapterTable()
    table.serve(lora("a", 1))
    table.begin(lora("a", 1))
    table.end(lora("a", 1))
    assert table.take_idle() == [], "its name leads to it"

    table.withdraw("a")

    assert table.take_idle() == [1]


def test_nobody_can_withdraw_what_is_not_there() -> None:
    with pytest.raises(KeyError):
        AdapterTable().withdraw("a")


def test_a_dropped_adapter_is_not_held_although_it_is_used() -> None:
    table = AdapterTable()
    adapter = lora("a", 1)
    table.serve(adapter)
    table.begin(adapter)

    table.drop(1)
    table.drop(1)

    assert (table.find("a"), table.held, table.holds(adapter)) == (None, (), False)
    assert table.take_idle() == []
    table.end(adapter)
    assert table.take_idle() == [1]


def test_the_view_of_ids_lives() -> None:
    table = AdapterTable()
    ids = table.ids
    table.serve(lora("a", 3))

    assert 3 in ids
