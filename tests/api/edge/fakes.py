from vllmfront.api.http import HttpRequest


def make_request(method: str, path: str, *headers: tuple[bytes, bytes]) -> HttpRequest:
    return HttpRequest(
        method=method, path=path, raw_path=path.encode(), query=b"", headers=headers, body=b""
    )
