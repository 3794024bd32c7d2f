from vllmfront.api.routes import not_served_routes


def test_no_route_is_listed_twice() -> None:
    routes = [(one.method, one.path) for one in not_served_routes({})]

    assert ("POST", "/v1/responses") in routes
    assert len(routes) == len(set(routes))
