"""Turn a GGUF file of the llama architecture into a folder that engines and frontends read.

    ENGINE/bin/python tools/convert_gguf.py FILE.gguf FOLDER

Runs in the engine's environment: it needs gguf, torch, safetensors and tokenizers. Weights are
dequantized to bfloat16. Only what SmolLM2 needs is covered: byte-level BPE whose digits are split
one by one, rotary positions, tied or untied embeddings.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

CONTROL_TOKEN = 3
"""GGUF's type of tokens that carry no text."""

OUTSIDE_LAYERS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
INSIDE_LAYERS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class GgufModel:
    """A GGUF file, read."""

    def __init__(self, path: Path) -> None:
        self._reader = gguf.GGUFReader(path)
        if self["general.architecture"] != "llama":
            raise SystemExit(f"{path} is not of the llama architecture")

    def __getitem__(self, key: str) -> Any:
        return self._reader.fields[key].contents()

    def get(self, key: str, default: Any) -> Any:
        return self[key] if key in self._reader.fields else default

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield every weight under its name in Hugging Face's layout."""
        heads = {
            "attn_q": self["llama.attention.head_count"],
            "attn_k": self["llama.attention.head_count_kv"],
        }
        for tensor in self._reader.tensors:
            values = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
            shape = [int(length) for length in tensor.shape[::-1]]
            weight = torch.from_numpy(values.reshape(shape))
            name = OUTSIDE_LAYERS.get(tensor.name)
            if name is None:
                _, layer, kind, suffix = tensor.name.split(".")
                if kind in heads:
                    weight = halves_apart(weight, heads[kind])
                name = f"model.layers.{layer}.{INSIDE_LAYERS[kind]}.{suffix}"
            yield name, weight.to(torch.bfloat16).contiguous()


def halves_apart(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Reorder the rows of a rotary projection.

    GGUF keeps the two partners of each rotation beside each other; Hugging Face's layout has the
    first partners of a head, then the second ones.
    """
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.transpose(1, 2).reshape(rows, columns)


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_tokenizer(model: GgufModel, folder: Path) -> None:
    tokens: list[str] = model["tokenizer.ggml.tokens"]
    kinds: list[int] = model["tokenizer.ggml.token_type"]
    merges: list[str] = model["tokenizer.ggml.merges"]
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [n for n, kind in enumerate(kinds) if kind == CONTROL_TOKEN]
    tokenizer.add_special_tokens(
        [AddedToken(tokens[n], special=True, normalized=False) for n in control]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    plain = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False}
    template: str = model["tokenizer.chat_template"]
    named = {
        f"{name}_token": tokens[model[f"tokenizer.ggml.{key}_token_id"]]
        for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown"))
    }
    write_json(folder / "special_tokens_map.json", named)
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "added_tokens_decoder": {
                str(n): {"content": tokens[n], "special": True, **plain} for n in control
            },
            **named,
            "clean_up_tokenization_spaces": False,
            "model_max_length": model["llama.context_length"],
            "chat_template": template,
        },
    )
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")


def write_configs(model: GgufModel, folder: Path, *, tied: bool) -> None:
    heads, hidden = model["llama.attention.head_count"], model["llama.embedding_length"]
    special = {
        "bos_token_id": model["tokenizer.ggml.bos_token_id"],
        "eos_token_id": model["tokenizer.ggml.eos_token_id"],
        "pad_token_id": model["tokenizer.ggml.padding_token_id"],
    }
    write_json(folder / "generation_config.json", special)
    write_json(
        folder / "config.json",
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "torch_dtype": "bfloat16",
            "vocab_size": len(model["tokenizer.ggml.tokens"]),
            "hidden_size": hidden,
            "intermediate_size": model["llama.feed_forward_length"],
            "num_hidden_layers": model["llama.block_count"],
            "num_attention_heads": heads,
            "num_key_value_heads": model["llama.attention.head_count_kv"],
            "head_dim": hidden // heads,
            "hidden_act": "silu",
            "rms_norm_eps": round(float(model["llama.attention.layer_norm_rms_epsilon"]), 9),
            "rope_theta": float(model["llama.rope.freq_base"]),
            "max_position_embeddings": model["llama.context_length"],
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": tied,
            **special,
        },
    )


def convert(source: Path, folder: Path) -> None:
    """Write everything that a model folder needs into *folder*, which must exist."""
    model = GgufModel(source)
    weights = dict(model.weights())
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    write_configs(model, folder, tied="lm_head.weight" not in weights)
    write_tokenizer(model, folder)
    name, licence = model.get("general.name", source.stem), model.get("general.license", "unknown")
    (folder / "NOTICE").write_text(
        f"{name}, licence: {licence}.\n"
        f"Converted from {source.name}; weights dequantized to bfloat16.\n",
        encoding="utf-8",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Convert a GGUF file to a model folder.")
    parser.add_argument("source", type=Path)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    convert(options.source, options.folder)


if __name__ == "__main__":
    main()
