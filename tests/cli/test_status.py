"""The command against servers that say what the test wants."""

import http.server
import io
import json
import socketserver
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import pytest

from vllmfront.cli import UsageError
from vllmfront.cli._status import NOT_READY, READY, UNREACHABLE, run

SERVES = {"state": "ready", "reason": "1 engine serves", "seconds": 2.0, "since": "x"}
LOADS = {"state": "loading", "reason": "the engine loads", "seconds": 2.0, "since": "x"}
INSIDE = {
    "tree": {"name": "root", "restarts": 0, "intensity": 0, "period": 1.0, "children": []},
    "engines": {"state": "ready", "requests": 0, "ranks": []},
}


@attrs.define
class Server:
    """A server that answers as it is told to."""

    url: str
    answers: dict[str, tuple[int, bytes]]
    keys: list[str | None] = attrs.field(factory=list)
    """What it was asked with."""

    def says(self, health: dict[str, object], inside: object = None, status: int = 200) -> None:
        ready = 200 if health["state"] == "ready" else 503
        self.answers["/ready"] = (ready, json.dumps(health).encode())
        self.answers["/supervisor"] = (status, json.dumps(inside or INSIDE).encode())


@contextmanager
def _running(make: Callable[[type], socketserver.TCPServer], url: str) -> Generator[Server]:
    answers: dict[str, tuple[int, bytes]] = {}
    keys: list[str | None] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            keys.append(self.headers["authorization"])
            status, body = answers.get(self.path, (404, b""))
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

        def address_string(self) -> str:
            return ""

    with make(Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield Server(url.format(server.server_address[1]), answers, keys)
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.delenv("VLLM_API_KEY", raising=False)

    def make(handler: type) -> socketserver.TCPServer:
        return http.server.HTTPServer(("127.0.0.1", 0), handler)

    with _running(make, "http://127.0.0.1:{}") as server:
        yield server


def test_a_ready_server_is_success(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.says(SERVES)

    assert run(["--url", server.url]) == READY
    assert capsys.readouterr().out.splitlines() == [
        f"{server.url}  READY for 2.0 s",
        "  1 engine serves",
        "",
        "root",
        "",
        "engines  READY  0 requests in flight",
    ]


def test_a_server_that_does_not_serve_is_no_success(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    server.says(LOADS)

    assert run(["--url", server.url]) == NOT_READY
    assert "LOADING for 2.0 s\n  the engine loads" in capsys.readouterr().out


def test_a_server_that_is_not_there_is_unreachable(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--url", "http://127.0.0.1:1"]) == UNREACHABLE
    assert "UNREACHABLE\n  Connection refused" in capsys.readouterr().err


def test_another_kind_of_server_is_called_that(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["--url", server.url]) == UNREACHABLE
    assert "no vllmfront server: /ready answered 404" in capsys.readouterr().err

    server.answers["/ready"] = (200, b"ok")

    assert run(["--url", server.url]) == UNREACHABLE
    assert "speaks otherwise" in capsys.readouterr().err


def test_a_missing_key_costs_the_tree_alone(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    server.says(SERVES, status=401)

    assert run(["--url", server.url]) == READY
    assert "more needs a key: give the server's --admin-api-key" in capsys.readouterr().out

    assert run(["--url", server.url, "--api-key", "wrong"]) == READY
    assert "more needs another key" in capsys.readouterr().out


def test_the_key_comes_from_the_option_or_the_environment(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.says(SERVES)
    monkeypatch.setenv("VLLM_API_KEY", "environment")
    run(["--url", server.url])
    run(["--url", server.url, "--api-key", "option"])

    assert server.keys == ["Bearer environment"] * 2 + ["Bearer option"] * 2


def test_a_unix_socket_can_be_asked(tmp_path: Path) -> None:
    path = tmp_path / "socket"

    def make(handler: type) -> socketserver.TCPServer:
        return socketserver.UnixStreamServer(str(path), handler)

    with _running(make, f"unix:{path}") as server:
        server.says(LOADS)

        assert run(["--url", server.url]) == NOT_READY


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://x:y", "http://x:0", "unix:", "x"])
def test_an_address_that_is_none_is_a_usage_error(url: str) -> None:
    with pytest.raises(UsageError, match="expected http://HOST:PORT"):
        run(["--url", url])


def test_a_key_that_cannot_be_sent_is_a_usage_error_that_does_not_repeat_it() -> None:
    with pytest.raises(UsageError) as caught:
        run(["--api-key", "secret\n"])

    assert "secret" not in str(caught.value)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@attrs.define
class Naps:
    """Takes the place of pauses: does the next thing in each, and interrupts the last."""

    acts: list[Callable[[], None]]

    def __call__(self, _seconds: float) -> None:
        if not self.acts:
            raise KeyboardInterrupt
        self.acts.pop(0)()


def test_watching_draws_over_and_gives_the_screen_back(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.says(LOADS)
    screen = Terminal()
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr("sys.stdout", screen)
    monkeypatch.setattr("time.sleep", Naps([lambda: server.says(SERVES)]))
    status = run(["--url", server.url, "--watch"])
    shown = screen.getvalue()

    assert status == READY
    assert shown.startswith("\033[?1049h")
    assert shown.endswith("\033[?1049l")
    assert shown.count("\033[H") == 2
    assert "\033[33mLOADING\033[0m" in shown
    assert "\033[32mREADY\033[0m" in shown


def test_watching_without_a_terminal_tells_changes(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server.says(LOADS)
    acts = [lambda: None, lambda: server.says(SERVES), server.answers.clear]
    monkeypatch.setattr("time.sleep", Naps(acts))
    status = run(["--url", server.url, "--watch"])
    lines = [line.partition(" ")[2] for line in capsys.readouterr().out.splitlines()]

    assert status == UNREACHABLE
    assert lines == [
        "loading: the engine loads",
        "ready: 1 engine serves",
        "unreachable: this is no vllmfront server: /ready answered 404",
    ]


def test_without_colour_where_a_person_wants_none(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.says(SERVES)
    screen = Terminal()
    monkeypatch.setattr("sys.stdout", screen)
    monkeypatch.setenv("NO_COLOR", "1")
    run(["--url", server.url])

    assert "READY" in screen.getvalue()
    assert "\033" not in screen.getvalue()
