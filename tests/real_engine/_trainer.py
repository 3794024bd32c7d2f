"""A trainer that uses vLLM's own client of servers; runs in the environment of a real engine.

Called with a server's URL, it reads one JSON order a line from its input and answers each with a
line: ``null``, or what went wrong.
"""

# mypy: ignore-errors
# It runs where vLLM is, which is not where types are checked.

import json
import sys

import requests
from vllm.distributed.weight_transfer.clients import HTTPVLLMWeightSyncClient


def say(value: object) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def main() -> None:
    url = sys.argv[1]
    client = HTTPVLLMWeightSyncClient(url)
    say("ready")
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        try:
            if name.startswith("/"):
                requests.post(url + name, timeout=60).raise_for_status()
            else:
                getattr(client, name)(*arguments)
        except requests.RequestException as error:
            say(str(error))
        else:
            say(None)


main()
