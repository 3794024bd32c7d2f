"""Every option of both releases has its place in our table."""

import json
import subprocess

import pytest

from tests.real_engine._process import engine_environment, engine_python
from vllmfront.cli import _args_json_keys as keys
from vllmfront.cli._args_json_engine import ENGINE_KEYS

pytestmark = [pytest.mark.engine, pytest.mark.slow]

NAMES = """\
import json
try:
    from vllm.entrypoints.common.cli_args import make_arg_parser
except ImportError:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
print(json.dumps([action.dest for action in make_arg_parser(FlexibleArgumentParser())._actions]))
"""

NEVER_SENT = {
    *("help", "api_server_count"),
    *("log_level", "logging_config"),  # they have no default, hence never differ from it
    *("data_parallel_rank", "data_parallel_external_lb", "data_parallel_hybrid_lb"),
}


@pytest.mark.parametrize("version", ["0.32.0", "0.33.0"])
def test_no_option_of_vllm_is_unknown(version: str) -> None:
    found = subprocess.run(
        [engine_python(), "-c", NAMES],
        env=dict(engine_environment(version)),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    names = set(json.loads(found.stdout.splitlines()[-1])) - NEVER_SENT
    known = {*keys.USED, *keys.WITHOUT_FEATURE, *keys.REFUSED, *keys.NO_EFFECT, *ENGINE_KEYS}

    assert len(names) > 300
    assert names - known == set()
