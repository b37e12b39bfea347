"""A Qwen3 checkpoint as a GGUF file for llama.cpp: every matrix in Q4_0, embedding and head included, the norms in F32.

The tokenizer inside is a stand-in of the right size: prompts are given as token ids.

Not here: running it (llama_cpp.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import dense
import gguf
from gguf import GGMLQuantizationType as Type

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


def tensor_names(config: dict) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """(checkpoint module, GGUF name, shape) of every tensor of the model."""
    hidden, mlp, head_dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    query = config["num_attention_heads"] * head_dim
    key = config["num_key_value_heads"] * head_dim
    shapes = {
        "attn_q": (query, hidden),
        "attn_k": (key, hidden),
        "attn_v": (key, hidden),
        "attn_output": (hidden, query),
        "attn_q_norm": (head_dim,),
        "attn_k_norm": (head_dim,),
        "ffn_gate": (mlp, hidden),
        "ffn_up": (mlp, hidden),
        "ffn_down": (hidden, mlp),
        "attn_norm": (hidden,),
        "ffn_norm": (hidden,),
    }
    vocabulary = (config["vocab_size"], hidden)
    yield "model.embed_tokens", "token_embd.weight", vocabulary
    yield "model.norm", "output_norm.weight", (hidden,)
    if not config["tie_word_embeddings"]:
        yield "lm_head", "output.weight", vocabulary
    for layer in range(config["num_hidden_layers"]):
        for module, base in MODULES.items():
            yield f"model.layers.{layer}.{module}", f"blk.{layer}.{base}.weight", shapes[base]


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


def write(folder: Path, config: dict, out: Path) -> None:
    """Writes `out` from the safetensors in `folder`."""
    for field in ("hidden_size", "intermediate_size"):
        if config[field] % 32:
            raise SystemExit(f"{folder}: {field} is {config[field]}; Q4_0 needs a multiple of 32")
    weights = dense.Weights(folder)
    writer = gguf.GGUFWriter(out, "qwen3")
    writer.add_name(folder.name)
    add_config(writer, config)
    eos = config.get("eos_token_id")
    add_stand_in_tokenizer(writer, config["vocab_size"], eos[0] if isinstance(eos, list) else eos)
    for module, name, shape in tensor_names(config):
        values = weights.values(f"{module}.weight", shape)
        if len(shape) == 2:
            writer.add_tensor(name, gguf.quantize(values, Type.Q4_0), raw_dtype=Type.Q4_0)
        else:
            writer.add_tensor(name, values, raw_dtype=Type.F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
