"""Makes a Qwen3 GGUF file for llama.cpp with every matrix in Q4_0 and the norms in F32.

    python make_gguf.py --from DIR OUTPUT          a checkpoint directory, see below
    python make_gguf.py --random qwen3-0.6b OUTPUT  that model's shapes, random weights

DIR holds config.json (model_type qwen3) and safetensors, either Hugging Face's BF16, F16 or F32 or
MLX's 4-bit groups. All is rounded to Q4_0 anew ("pure": also the embedding and the head), so the
file has the checkpoint's shapes and nearly its values: for speed, not for judging answers. The
tokenizer inside is a stand-in of the right size, so prompts are given as token ids.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

# hidden, mlp, layers, query heads, key and value heads, whether the head is the embedding
SHAPES = {
    "qwen3-0.6b": (1024, 3072, 28, 16, 8, True),
    "qwen3-1.7b": (2048, 6144, 28, 16, 8, True),
    "qwen3-4b": (2560, 9728, 36, 32, 8, True),
    "qwen3-8b": (4096, 12288, 36, 32, 8, False),
}
MODULES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def named_config(name: str) -> dict[str, object]:
    """config.json's fields for one of SHAPES."""
    hidden, mlp, layers, heads, kv_heads, tied = SHAPES[name]
    return {
        "model_type": "qwen3", "hidden_size": hidden, "intermediate_size": mlp,
        "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "head_dim": 128, "vocab_size": 151_936,
        "rms_norm_eps": 1e-6, "rope_theta": 1_000_000.0, "max_position_embeddings": 40_960,
        "tie_word_embeddings": tied, "eos_token_id": 151_645,
    }


def tensor_names(config: dict) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """(checkpoint module, GGUF name, shape) of every tensor of the model."""
    hidden, mlp, head_dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    query = config["num_attention_heads"] * head_dim
    key = config["num_key_value_heads"] * head_dim
    shapes = {
        "attn_q": (query, hidden), "attn_k": (key, hidden), "attn_v": (key, hidden),
        "attn_output": (hidden, query), "attn_q_norm": (head_dim,), "attn_k_norm": (head_dim,),
        "ffn_gate": (mlp, hidden), "ffn_up": (mlp, hidden), "ffn_down": (hidden, mlp),
        "attn_norm": (hidden,), "ffn_norm": (hidden,),
    }
    vocabulary = (config["vocab_size"], hidden)
    yield "model.embed_tokens", "token_embd.weight", vocabulary
    yield "model.norm", "output_norm.weight", (hidden,)
    if not config["tie_word_embeddings"]:
        yield "lm_head", "output.weight", vocabulary
    for layer in range(config["num_hidden_layers"]):
        for module, base in MODULES.items():
            yield f"model.layers.{layer}.{module}", f"blk.{layer}.{base}.weight", shapes[base]


class Checkpoint:
    """The float32 tensors of a directory of safetensors, dense or in MLX's 4-bit groups."""

    def __init__(self, folder: Path, config: dict) -> None:
        self.quantization = config.get("quantization") or {}
        self.tensors: dict[str, tuple[np.ndarray, str, list[int]]] = {}
        for path in sorted(folder.glob("*.safetensors")):
            data = np.memmap(path, dtype=np.uint8, mode="r")
            start = 8 + int(data[:8].view("<u8")[0])
            for name, entry in json.loads(data[8:start].tobytes()).items():
                if name != "__metadata__":
                    begin, end = entry["data_offsets"]
                    stored = data[start + begin : start + end]
                    self.tensors[name] = stored, entry["dtype"], entry["shape"]
        if not self.tensors:
            sys.exit(f"{folder}: no *.safetensors file with tensors in it")

    def stored(self, name: str) -> np.ndarray:
        """The tensor as it lies in the file; BF16 becomes float32, which holds it exactly."""
        if name not in self.tensors:
            sys.exit(f"the checkpoint has no tensor {name}")
        data, dtype, shape = self.tensors[name]
        if dtype == "BF16":
            wide = data.view("<u2").astype(np.uint32) << 16
            return wide.view(np.float32).reshape(shape)
        types = {"F32": "<f4", "F16": "<f2", "U32": "<u4"}
        if dtype not in types:
            sys.exit(f"tensor {name} is {dtype}; only BF16, F16, F32 and U32 (4-bit) are read")
        return data.view(types[dtype]).reshape(shape)

    def values(self, module: str, shape: tuple[int, ...]) -> np.ndarray:
        weight = self.stored(f"{module}.weight")
        if f"{module}.scales" in self.tensors:
            scales = self.stored(f"{module}.scales").astype(np.float32)[:, :, None]
            biases = self.stored(f"{module}.biases").astype(np.float32)[:, :, None]
            codes = (weight[:, :, None] >> np.arange(0, 32, 4, dtype=np.uint32)) & 0xF
            grouped = codes.reshape(*scales.shape[:2], -1).astype(np.float32)
            weight = (grouped * scales + biases).reshape(weight.shape[0], -1)
        if weight.shape != shape:
            sys.exit(f"tensor {module} has shape {weight.shape}, config.json says {shape}")
        return weight.astype(np.float32)


class RandomWeights:
    """Seeded Q4_0 blocks and norms near one, without ever making the float matrix."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def norm(self, size: int) -> np.ndarray:
        return (1.0 + 0.1 * self.rng.standard_normal(size)).astype(np.float32)

    def blocks(self, rows: int, columns: int) -> np.ndarray:
        """(rows, row bytes): uniform codes, scales that make the weights ~ 1 / sqrt(columns)."""
        blocks = np.frombuffer(self.rng.bytes(rows * columns // 32 * 18), dtype=np.uint8)
        blocks = blocks.reshape(rows, columns // 32, 18).copy()
        # The codes' standard deviation is 4.6.
        spread = self.rng.uniform(0.8, 1.2, blocks.shape[:2]) / (4.6 * np.sqrt(columns))
        blocks[:, :, :2] = spread.astype(np.float16)[:, :, None].view(np.uint8)
        return blocks.reshape(rows, -1)


def add_config(writer: gguf.GGUFWriter, config: dict) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    rope = config.get("rope_parameters") or {"rope_theta": config.get("rope_theta")}
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_0)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)


def add_stand_in_tokenizer(writer: gguf.GGUFWriter, vocabulary: int, eos: int | None) -> None:
    """Byte-level BPE with the 256 bytes, one merge, and names nobody will type."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = [chr(byte) for byte in kept] + [chr(256 + index) for index in range(68)]
    tokens = [*letters, "th", *(f"<stand-in-{index}>" for index in range(257, vocabulary))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens[:vocabulary])
    writer.add_token_types([gguf.TokenType.NORMAL] * vocabulary)
    writer.add_token_merges(["t h"])
    if eos is not None:
        writer.add_eos_token_id(eos)
    writer.add_add_bos_token(False)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--from", dest="folder", type=Path, metavar="DIR")
    source.add_argument("--random", choices=sorted(SHAPES))
    parser.add_argument("--seed", type=int, default=0, help="of --random")
    parser.add_argument("output", type=Path)
    arguments = parser.parse_args()
    if arguments.output.exists():
        parser.error(f"{arguments.output} exists; outputs are never overwritten")
    return arguments


def read_config(folder: Path) -> dict:
    config = json.loads((folder / "config.json").read_text())
    if config.get("model_type") != "qwen3":
        sys.exit(f"{folder}: model_type is {config.get('model_type')!r}, only 'qwen3' is written")
    return config


def main() -> None:
    arguments = parse_arguments()
    config = named_config(arguments.random) if arguments.random else read_config(arguments.folder)
    for field in ("hidden_size", "intermediate_size"):
        if config[field] % 32:
            sys.exit(f"{field} is {config[field]}; Q4_0 needs a multiple of 32")
    source = (
        RandomWeights(arguments.seed) if arguments.random else Checkpoint(arguments.folder, config)
    )
    writer = gguf.GGUFWriter(arguments.output, "qwen3")
    writer.add_name(arguments.random or arguments.folder.resolve().name)
    add_config(writer, config)
    eos = config.get("eos_token_id")
    add_stand_in_tokenizer(writer, config["vocab_size"], eos[0] if isinstance(eos, list) else eos)
    for module, name, shape in tensor_names(config):
        matrix = len(shape) == 2
        if isinstance(source, RandomWeights):
            stored = source.blocks(*shape) if matrix else source.norm(*shape)
        else:
            values = source.values(module, shape)
            stored = gguf.quantize(values, Type.Q4_0) if matrix else values
        writer.add_tensor(name, stored, raw_dtype=Type.Q4_0 if matrix else Type.F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
