"""A tiny model that is loaded once, and the routes over it."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from tests.api.openai._harness import Api, open_api
from vllmfront.models import ModelDescription, files_in_folder, load_model_description, read_text
from vllmfront.text import Tokenizer, tokenizer_from_json

TINY_CHAT = Path(__file__).parents[2] / "data" / "tiny-chat"


@pytest.fixture(scope="session")
def model() -> ModelDescription:
    return load_model_description(files_in_folder("tiny-chat", TINY_CHAT))


@pytest.fixture(scope="session")
def tokenizer(model: ModelDescription) -> Tokenizer:
    assert model.files.tokenizer is not None
    return tokenizer_from_json(
        read_text(model.files.tokenizer),
        vocab_size=model.config.vocab_size,
        eos_token=model.tokenizer_config.eos_token,
    )


@pytest.fixture
async def api(model: ModelDescription, tokenizer: Tokenizer) -> AsyncGenerator[Api]:
    async with open_api(model, tokenizer) as opened:
        yield opened


@pytest.fixture(params=["whole", "stream"])
def stream(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "stream")


@pytest.fixture(params=[False, True], ids=["new", "known"])
def known(request: pytest.FixtureRequest) -> bool:
    """Whether requests of the same kind were served before: streams need no task of theirs then."""
    return bool(request.param)
