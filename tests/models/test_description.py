import json
from pathlib import Path
from typing import Any

import pytest

from vllmfront.errors import ConfigurationError
from vllmfront.models import (
    GenerationDefaults,
    ModelDescription,
    files_in_folder,
    load_model_description,
    read_text,
)
from vllmfront.models._description import merge_patch

TINY_CHAT = Path(__file__).parent.parent / "data" / "tiny-chat"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model folder with no more than it needs."""
    write(tmp_path / "config.json", {"model_type": "qwen3", "vocab_size": 100})
    return tmp_path


def write(path: Path, content: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")


def describe(folder: Path, **options: Any) -> ModelDescription:
    return load_model_description(files_in_folder("m", folder), **options)


def test_a_real_folder() -> None:
    model = describe(TINY_CHAT)

    assert (model.config.vocab_size, model.config.is_moe) == (2048, False)
    assert model.config.eos_token_ids == (2041,)
    assert model.generation == GenerationDefaults(
        temperature=0.6, top_p=0.95, top_k=20, eos_token_ids=(2041, 2039)
    )
    assert model.generation.neutral() == GenerationDefaults(eos_token_ids=(2041, 2039))
    assert model.tokenizer_config.eos_token == "<|im_end|>"
    assert model.chat_template == (TINY_CHAT / "chat_template.jinja").read_text("utf-8")


def test_a_bare_folder(folder: Path) -> None:
    model = describe(folder)

    assert model.generation == GenerationDefaults()
    assert model.tokenizer_config.special_tokens == {}
    assert model.chat_template is None
    assert model.files.tokenizer is None


@pytest.mark.parametrize(
    ("config", "vocab_size", "is_moe"),
    [
        ({"vocab_size": 5}, 5, False),
        ({"text_config": {"vocab_size": 6}}, 6, False),
        ({"vocab_size": 5, "text_config": {"vocab_size": 6}}, 5, False),
        ({"vocab_size": 5, "num_experts": 8}, 5, True),
        ({"vocab_size": 5, "num_experts": 0}, 5, False),
        ({"vocab_size": 5, "n_routed_experts": None}, 5, False),
        ({"vocab_size": 5, "moe_num_experts": [64, 64]}, 5, True),
        ({"vocab_size": 5, "text_config": {"num_local_experts": 4}}, 5, True),
        ({"vocab_size": 5, "block_configs": [{"n_routed_experts": 2}]}, 5, True),
    ],
)
def test_what_config_json_says(
    folder: Path, config: dict[str, Any], vocab_size: int, is_moe: bool
) -> None:
    write(folder / "config.json", config)

    found = describe(folder).config

    assert (found.vocab_size, found.is_moe) == (vocab_size, is_moe)


def test_overrides_are_a_merge_patch(folder: Path) -> None:
    write(folder / "config.json", {"vocab_size": 5, "num_experts": 8, "text_config": {"a": 1}})

    config = describe(
        folder, hf_overrides={"vocab_size": 7, "num_experts": None, "text_config": {"b": 2}}
    ).config

    assert (config.vocab_size, config.is_moe) == (7, False)


@pytest.mark.parametrize(
    ("target", "patch", "merged"),
    [
        ({"a": 1}, {"a": None, "b": {"c": None, "d": 2}}, {"b": {"d": 2}}),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}}, {"a": {"b": 3, "c": 2}}),
        ({"a": [1]}, {"a": {"b": 1}}, {"a": {"b": 1}}),
        ({"a": 1}, [1], [1]),
    ],
)
def test_merge_patch(target: Any, patch: Any, merged: Any) -> None:
    assert merge_patch(target, patch) == merged


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ({"eos_token_id": 3}, (3,)),
        ({"eos_token_id": [3, 4, 3]}, (3, 4)),
        ({"eos_token_id": None}, ()),
    ],
)
def test_eos_ids(folder: Path, raw: dict[str, Any], expected: tuple[int, ...]) -> None:
    write(folder / "generation_config.json", raw)

    assert describe(folder).generation.eos_token_ids == expected


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [
        ({"eos_token_id": [5, 4]}, {"eos_token_id": [4, 3]}, (5, 4, 3)),
        ({"temperature": 0.5}, {"eos_token_id": 3}, (3,)),
        ({}, {"text_config": {"eos_token_id": [3, 2]}}, (3, 2)),
        ({"eos_token_id": []}, {}, ()),
    ],
)
def test_both_configs_say_what_ends_a_text(
    folder: Path, generation: dict[str, Any], config: dict[str, Any], expected: tuple[int, ...]
) -> None:
    write(folder / "generation_config.json", generation)
    write(folder / "config.json", {"vocab_size": 100, **config})

    description = describe(folder)
    assert description.generation.eos_token_ids == expected
    assert description.generation.neutral().eos_token_ids == expected


def test_all_generation_defaults(folder: Path) -> None:
    values = {
        "temperature": 1,
        "top_p": 0.5,
        "top_k": -1,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "frequency_penalty": 0.2,
        "presence_penalty": 0.3,
        "max_new_tokens": 50,
    }
    write(folder / "generation_config.json", values)

    assert describe(folder).generation == GenerationDefaults(**values)  # type: ignore[arg-type]  # mixed numbers


def test_special_tokens_may_be_objects_and_the_map_fills_gaps(folder: Path) -> None:
    write(
        folder / "tokenizer_config.json",
        {
            "eos_token": {"content": "</s>"},
            "bos_token": None,
        },
    )
    write(folder / "special_tokens_map.json", {"bos_token": "<s>", "eos_token": "other"})

    config = describe(folder).tokenizer_config

    assert config.eos_token == "</s>"
    assert config.special_tokens == {"eos_token": "</s>", "bos_token": "<s>"}


@pytest.mark.parametrize(
    ("files", "template", "named"),
    [
        ({"tokenizer_config.json": {"chat_template": "a"}}, "a", {}),
        (
            {
                "tokenizer_config.json": {
                    "chat_template": [
                        {"name": "default", "template": "a"},
                        {"name": "tool_use", "template": "b"},
                    ]
                }
            },
            "a",
            {"tool_use": "b"},
        ),
        (
            {"tokenizer_config.json": {"chat_template": [{"name": "chat", "template": "c"}]}},
            "c",
            {"chat": "c"},
        ),
        (
            {"tokenizer_config.json": {"chat_template": "a"}, "chat_template.jinja": "b"},
            "b",
            {},
        ),
        ({"chat_template.json": {"chat_template": "c"}}, "c", {}),
        ({"zzz.jinja": "d"}, "d", {}),
        ({"zzz.jinja": "d", "chat_template.jinja": "e"}, "e", {}),
        (
            {"chat_template.jinja": "e", "additional_chat_templates/rag.jinja": "f"},
            "e",
            {"rag": "f"},
        ),
    ],
)
def test_where_templates_come_from(
    folder: Path, files: dict[str, Any], template: str, named: dict[str, str]
) -> None:
    for name, content in files.items():
        write(folder / name, content)

    model = describe(folder)

    assert model.chat_template == template
    assert model.named_templates == named


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("config.json", {}, "vocab_size"),
        ("config.json", {"vocab_size": "many"}, "vocab_size"),
        ("config.json", {"vocab_size": True}, "vocab_size"),
        ("config.json", "[]", "JSON object"),
        ("config.json", "{", "not valid JSON"),
        ("config.json", '{"a": ' + "[" * 100_000, "nested"),
        ("generation_config.json", {"temperature": "hot"}, "temperature"),
        ("generation_config.json", {"top_k": 1.5}, "top_k"),
        ("generation_config.json", {"top_p": True}, "top_p"),
        ("generation_config.json", {"eos_token_id": ["x"]}, "eos_token_id"),
        ("generation_config.json", {"eos_token_id": -1}, "eos_token_id"),
        ("tokenizer_config.json", {"chat_template": 5}, "chat_template"),
        ("tokenizer_config.json", {"chat_template": [{"name": "x"}]}, "chat_template"),
        ("chat_template.json", {}, "chat_template"),
    ],
)
def test_broken_files_are_named(folder: Path, name: str, content: Any, told: str) -> None:
    write(folder / name, content)

    with pytest.raises(ConfigurationError, match=told) as caught:
        describe(folder)

    assert name in str(caught.value)


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"no config\.json"):
        describe(tmp_path)


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\xff")

    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_text(tmp_path / "x")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_text(tmp_path / "absent")


def test_operators_override_sampling_defaults_and_not_what_ends_a_text() -> None:
    model = GenerationDefaults(temperature=0.6, top_k=20, eos_token_ids=(7,))

    made = model.overridden({"temperature": None, "top_p": 0.5, "eos_token_id": 9}, "override")

    assert made == GenerationDefaults(top_k=20, top_p=0.5, eos_token_ids=(7,))
    with pytest.raises(ConfigurationError, match="override: top_p must be a number"):
        model.overridden({"top_p": "high"}, "override")
