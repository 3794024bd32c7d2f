from vllmfront.api.routes import not_served_routes


def paths(environ: dict[str, str]) -> set[str]:
    return {route.path for route in not_served_routes(environ)}


def test_gated_routes_do_not_exist_behind_a_closed_gate() -> None:
    known = paths({})

    assert "/v1/responses" in known
    assert "/sleep" not in known


def test_the_development_gate_opens_for_any_nonzero_number() -> None:
    assert "/sleep" in paths({"VLLM_SERVER_DEV_MODE": "1"})
    assert "/sleep" not in paths({"VLLM_SERVER_DEV_MODE": "0"})
    assert "/sleep" not in paths({"VLLM_SERVER_DEV_MODE": "yes"})


def test_no_route_is_listed_twice() -> None:
    routes = [(r.method, r.path) for r in not_served_routes({"VLLM_SERVER_DEV_MODE": "1"})]

    assert len(routes) == len(set(routes))
