"""With a key, no spelling of a path gets past it."""

import itertools
from pathlib import Path

from tests.abuse.rig import COMPLETIONS, Frontend, get, open_engine, post, running_frontend
from vllmfront.api.edge._access import OPEN_PATHS

KEY = "Authorization: Bearer sesame"

GUARDED = [
    "/v1/models",
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/responses",
    "/tokenize",
    "/detokenize",
    "/load",
    "/inference/v1/generate",
    "/invocations",
    "/pause",
    "/nowhere",
    "/",
    "*",
]


def spellings(path: str) -> list[str]:
    """List ways to write *path* that a careless reader may take for it, or for something open."""
    name = path[1:]
    return [
        path,
        path.upper(),
        path + "/",
        "/" + path,
        path.replace("/", "//"),
        path.replace("/", "/./"),
        "/health/.." + path,
        "/health/%2e%2e" + path,
        "/health%2f.." + path,
        "/%2f" + name,
        "".join(f"%{ord(char):02x}" if char != "/" else char for char in path),
        path + "%20",
        path + "%00",
        path + "?x=/health",
        path + ";/health",
        path + "#/health",
        "http://x" + path,
        "http://health" + path,
        "/metrics#" + name,
        "/health%23" + name,
    ]


async def test_no_spelling_of_a_path_opens_it_without_the_key(tmp_path: Path) -> None:
    with running_frontend(tmp_path, "--api-key", "sesame") as frontend:
        frontend.key = (KEY,)
        async with open_engine(frontend) as engine:
            base = await frontend.books()
            for method, path in itertools.product(("GET", "POST"), GUARDED):
                for spelling in spellings(path):
                    await _check_closed(frontend, method, spelling)
            for path in sorted(OPEN_PATHS):
                assert (await frontend.get(path)).status in {200, 404}
            for key in ("", "Bearer", "Bearer ", "Bearer x", "bearer sesame ", "Basic sesame"):
                answer = await frontend.get("/v1/models", f"Authorization: {key}")
                assert answer.status == (200 if key.lower().strip() == "bearer sesame" else 401)
            twice = await frontend.get("/v1/models", "Authorization: Bearer x", KEY)
            served = await frontend.ask(post(COMPLETIONS, {"prompt": "a", "max_tokens": 1}, KEY))
            models = await frontend.get("/v1/models", KEY)
            after = await frontend.settle(base)
        text = frontend.log_text()

    assert twice.status == 401
    assert (served.status, models.status) == (200, 200)
    assert len(engine.adds) == 1
    assert after.ends["length"] == 1
    assert "sesame" not in text


async def _check_closed(frontend: Frontend, method: str, spelling: str) -> None:
    """Check that *spelling* is refused, unless it is another way to write what is open."""
    request = get(spelling).replace(b"GET", method.encode(), 1)
    answer = await frontend.ask(request)
    if spelling.partition("#")[0] in OPEN_PATHS:
        return

    assert answer.status in {400, 401}, (method, spelling, answer)
