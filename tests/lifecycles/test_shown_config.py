"""What operators may see of a configuration."""

import json

from vllmfront.lifecycles import (
    AdapterConfig,
    EngineConfig,
    ModelConfig,
    ServeConfig,
    ServerConfig,
)
from vllmfront.lifecycles._shown_config import shown_config, shown_words


def test_everything_but_secrets_is_shown_as_plain_data() -> None:
    config = ServeConfig(
        model=ModelConfig(
            model="m", overrides={"a": {"b": 1}}, adapters=[AdapterConfig(name="x", path="/x")]
        ),
        engine=EngineConfig(arguments=("--hf-token", "hush", "--seed", "1")),
        server=ServerConfig(api_keys=("hush",), admin_api_keys=("hush",)),
    )

    shown = shown_config(config)

    assert "hush" not in json.dumps(shown)
    assert shown["model"]["overrides"] == {"a": {"b": 1}}
    assert shown["model"]["adapters"][0]["path"] == "/x"
    assert shown["engine"]["arguments"] == ["--hf-token", "***", "--seed", "1"]
    assert shown["listen"]["port"] == 8000
    assert "api_keys" not in shown["server"]


def test_values_of_secret_options_are_hidden() -> None:
    words = ["--api-key=a", "--seed", "3", "--some-secret", "b", "c", "--max-tokens", "4"]

    assert shown_words(words) == [
        *("--api-key=***", "--seed", "3", "--some-secret", "***", "c", "--max-tokens", "4")
    ]
