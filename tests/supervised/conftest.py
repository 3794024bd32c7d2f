"""Supervisors of both releases, each with all that can be asked of them together."""

import json
from collections.abc import Generator
from contextlib import ExitStack

import attrs
import pytest
import trustme

from tests.real_engine._process import engine_python
from tests.supervised.rig import KEY, Supervised, supervising

NAMES = ("tiny", "other")
MOST_TOKENS = 400
SHUTDOWN_TIMEOUT = 5
TEMPLATE = "{# The same prompt, whatever was said. #}hi"


@attrs.frozen
class Pair:
    """Both are started together: loading two engines takes hardly longer than one."""

    over_tcp: Supervised
    over_uds: Supervised


@pytest.fixture(scope="package")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Generator[Pair]:
    """vLLM 0.33 with TLS on a TCP port, and 0.32 on a Unix socket."""
    engine_python()
    folder = tmp_path_factory.mktemp("supervised")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "authority.pem")
    own = authority.issue_cert("127.0.0.1")
    own.private_key_pem.write_to_path(folder / "key.pem")
    own.cert_chain_pems[0].write_to_path(folder / "certificate.pem")
    template = folder / "template.jinja"
    template.write_text(TEMPLATE)
    options = [
        *("--served-model-name", *NAMES),
        *("--api-key", KEY),
        *("--shutdown-timeout", str(SHUTDOWN_TIMEOUT)),
        *("--ssl-certfile", str(folder / "certificate.pem")),
        *("--ssl-keyfile", str(folder / "key.pem")),
        *("--chat-template", str(template)),
        *(
            "--override-generation-config",
            json.dumps({"temperature": 0, "max_new_tokens": MOST_TOKENS}),
        ),
    ]
    (folder / "tcp").mkdir()
    (folder / "uds").mkdir()
    with ExitStack() as stack:
        yield Pair(
            stack.enter_context(
                supervising(
                    "0.33.0", folder / "tcp", *options, certificate=folder / "authority.pem"
                )
            ),
            stack.enter_context(supervising("0.32.0", folder / "uds", uds=folder / "socket")),
        )


@pytest.fixture
def over_tcp(pair: Pair) -> Supervised:
    """With a certificate, a key, two names, a template and defaults; drains for five seconds."""
    return pair.over_tcp


@pytest.fixture
def over_uds(pair: Pair) -> Supervised:
    """With nothing but a Unix socket."""
    return pair.over_uds
