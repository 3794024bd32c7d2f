from vllmfront.api.routes._not_served import NOT_SERVED


def test_no_route_is_listed_twice() -> None:
    routes = [(one.method, one.path) for one in NOT_SERVED]

    assert ("POST", "/v1/responses") in routes
    assert len(routes) == len(set(routes))
