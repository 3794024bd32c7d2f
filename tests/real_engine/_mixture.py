"""A model that engines take for a mixture of experts, so that they step together."""

import json
import shutil
from pathlib import Path

from tests.real_engine._process import TINY_CHAT


def make_mixture(folder: Path) -> Path:
    """Copy the tiny chat model into *folder*, with a word about experts that it does not have.

    Engines on the CPU cannot run real experts of several ranks; in all else they are the same.
    """
    model = folder / "mixture"
    shutil.copytree(TINY_CHAT, model)
    config = model / "config.json"
    config.chmod(0o644)
    config.write_text(json.dumps({**json.loads(config.read_text()), "num_experts": 4}))
    return model
