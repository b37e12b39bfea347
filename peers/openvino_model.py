"""A Qwen3 checkpoint as an OpenVINO model with weights in INT4 groups of 128, built operation by operation.

OpenVINO's own converter needs torch, transformers and nncf to make the same graph; built here it needs numpy. The patterns are
the ones that the CPU plugin fuses: RMS normalization, rotation, attention with a stateful key-value cache, compressed weights.

Inputs: input_ids (batch, rows) int64, positions (rows,) int64, beam_idx (batch,) int32, wanted (rows with logits,)
int64. Output: logits (batch, rows with logits, vocabulary). The batch is always 1, but a graph that knows it is simplified out of the patterns.

Not here: running it (openvino.py).
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import openvino as ov
from openvino import opset15 as op
from openvino.op.util import Variable, VariableInfo

GROUP = 128


class Weights:
    """The BF16 tensors of a directory of safetensors."""

    def __init__(self, folder: Path) -> None:
        self.tensors: dict[str, tuple[np.ndarray, list[int]]] = {}
        for path in sorted(folder.glob("*.safetensors")):
            data = np.memmap(path, dtype=np.uint8, mode="r")
            start = 8 + int(data[:8].view("<u8")[0])
            for name, entry in json.loads(data[8:start].tobytes()).items():
                if name == "__metadata__":
                    continue
                if entry["dtype"] != "BF16":
                    raise SystemExit(f"{path}: tensor {name}: expected BF16, found {entry['dtype']}")
                begin, end = entry["data_offsets"]
                self.tensors[name] = data[start + begin : start + end], entry["shape"]

    def values(self, name: str) -> np.ndarray:
        stored, shape = self.tensors[name]
        return (stored.view("<u2").astype(np.uint32) << 16).view(np.float32).reshape(shape)


def int4(values: np.ndarray, symmetric: bool) -> ov.Node:
    """(rows, columns) as codes, a scale and, unless symmetric, a zero point for each group of columns; float32 to its users."""
    rows, columns = values.shape
    grouped = values.reshape(rows, columns // GROUP, GROUP)
    if symmetric:
        # The value furthest from zero gets code -8.
        furthest = np.take_along_axis(grouped, np.abs(grouped).argmax(axis=2, keepdims=True), axis=2)
        scale = np.where(furthest == 0, 1.0, furthest / -8)
        codes = np.clip(np.rint(grouped / scale), -8, 7).astype(np.int8).view(np.uint8) & 0xF
    else:
        low = np.minimum(grouped.min(axis=2, keepdims=True), 0)
        scale = (np.maximum(grouped.max(axis=2, keepdims=True), 0) - low) / 15
        scale = np.where(scale == 0, 1.0, scale)
        zero = np.clip(np.rint(-low / scale), 0, 15)
        codes = np.clip(np.rint(grouped / scale + zero), 0, 15).astype(np.uint8)
    kind = ov.Type.i4 if symmetric else ov.Type.u4
    weight = op.convert(packed(codes, kind), ov.Type.f16)
    if not symmetric:
        weight = op.subtract(weight, op.convert(packed(zero.astype(np.uint8), kind), ov.Type.f16))
    weight = op.multiply(weight, op.constant(scale.astype(np.float16)))
    weight = op.reshape(weight, op.constant(np.array([rows, columns], np.int64)), False)
    return op.convert(weight, ov.Type.f32)


def packed(codes: np.ndarray, kind: ov.Type) -> ov.Node:
    flat = codes.reshape(-1)
    if flat.size % 2:
        flat = np.append(flat, np.uint8(0))
    # A tensor over a numpy array would outlive it.
    tensor = ov.Tensor(kind, list(codes.shape))
    tensor.data.reshape(-1)[:] = flat[::2] | flat[1::2] << 4
    return op.constant(tensor)


def rms_norm(x: ov.Node, gamma: np.ndarray, epsilon: float) -> ov.Node:
    mean = op.reduce_mean(op.power(x, np.float32(2)), np.array([-1], np.int64), True)
    root = op.sqrt(op.add(mean, np.float32(epsilon)))
    return op.multiply(op.constant(gamma), op.multiply(x, op.divide(np.float32(1), root)))


def rotate(x: ov.Node, cos: ov.Node, sin: ov.Node, head_dim: int) -> ov.Node:
    """(1, heads, rows, head_dim): element i turns with element i + head_dim / 2."""
    half = np.array([head_dim // 2, head_dim // 2], np.int64)
    first, second = op.variadic_split(x, np.int64(3), half).outputs()
    turned = op.concat([op.multiply(second, np.float32(-1)), first], -1)
    return op.add(op.multiply(x, cos), op.multiply(turned, sin))


class Builder:
    """One model while it is built."""

    def __init__(self, config: dict, weights: Weights, symmetric: bool) -> None:
        self.config, self.weights, self.symmetric = config, weights, symmetric
        self.heads, self.kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.head_dim, self.epsilon = config["head_dim"], config["rms_norm_eps"]
        self.sinks: list[ov.Node] = []
        self.variables: list[Variable] = []
        self.ids = op.parameter([-1, -1], ov.Type.i64, name="input_ids")
        self.positions = op.parameter([-1], ov.Type.i64, name="positions")
        self.beam = op.parameter([-1], ov.Type.i32, name="beam_idx")
        self.wanted = op.parameter([-1], ov.Type.i64, name="wanted")
        self.inputs = [self.ids, self.positions, self.beam, self.wanted]
        for node in self.inputs:
            node.output(0).set_names({node.get_friendly_name()})
        self.batch = op.gather(op.shape_of(self.ids, ov.Type.i64), np.array([0], np.int64), np.int64(0))

    def matrix(self, name: str) -> ov.Node:
        return int4(self.weights.values(f"{name}.weight"), self.symmetric)

    def linear(self, x: ov.Node, name: str) -> ov.Node:
        return op.matmul(x, self.matrix(name), False, True)

    def norm(self, x: ov.Node, name: str) -> ov.Node:
        return rms_norm(x, self.weights.values(f"{name}.weight"), self.epsilon)

    def angles(self) -> tuple[ov.Node, ov.Node]:
        """Cosine and sine, each (1, 1, rows, head_dim)."""
        rope = self.config.get("rope_parameters") or {}
        theta = rope.get("rope_theta", self.config.get("rope_theta"))
        pairs = np.arange(0, self.head_dim, 2, dtype=np.float64) / self.head_dim
        turns = (theta**-pairs).astype(np.float32).reshape(1, 1, -1)
        rows = op.convert(op.reshape(self.positions, np.array([1, -1, 1], np.int64), False), ov.Type.f32)
        angle = op.matmul(rows, op.constant(turns), False, False)
        both = op.unsqueeze(op.concat([angle, angle], -1), np.int64(1))
        return op.cos(both), op.sin(both)

    def mask(self) -> ov.Node:
        """(1, 1, rows, keys): 0 up to a row's own position, -inf behind it."""
        last = op.gather(self.positions, np.array(-1, np.int64), np.int64(0))
        keys = op.range(np.int64(0), op.add(last, np.int64(1)), np.int64(1), ov.Type.i64)
        seen = op.less_equal(op.unsqueeze(keys, np.int64(0)), op.unsqueeze(self.positions, np.int64(1)))
        mask = op.select(seen, np.float32(0), np.float32(-np.inf))
        return op.unsqueeze(mask, np.array([0, 1], np.int64))

    def cached(self, new: ov.Node, name: str) -> ov.Node:
        """(1, kv heads, keys, head_dim): the cache with the new rows behind it, for every query head."""
        shape = [-1, self.kv_heads, -1, self.head_dim]
        variable = Variable(VariableInfo())
        variable.update(info(shape, name))
        empty = op.broadcast(np.float32(0), op.concat([self.batch, np.array([self.kv_heads, 0, self.head_dim], np.int64)], 0))
        past = op.gather(op.read_value(empty, variable), self.beam, np.int64(0))
        both = op.concat([past, new], 2)
        self.sinks.append(op.assign(both, variable))
        self.variables.append(variable)
        share = self.heads // self.kv_heads
        if share == 1:
            return both
        # The form of repeating that the plugin recognizes and then does not compute; a Broadcast is decomposed.
        ones = op.constant(np.ones((1, 1, share, 1, 1), np.float32))
        wide = op.multiply(op.unsqueeze(both, np.int64(2)), ones)
        return op.reshape(wide, np.array([0, self.heads, -1, self.head_dim], np.int64), True)

    def split_heads(self, x: ov.Node, heads: int) -> ov.Node:
        return op.reshape(x, np.array([0, 0, heads, self.head_dim], np.int64), True)

    def attention(self, x: ov.Node, layer: str, cos: ov.Node, sin: ov.Node, mask: ov.Node) -> ov.Node:
        order = np.array([0, 2, 1, 3], np.int64)
        name = f"{layer}.self_attn"
        query = self.norm(self.split_heads(self.linear(x, f"{name}.q_proj"), self.heads), f"{name}.q_norm")
        key = self.norm(self.split_heads(self.linear(x, f"{name}.k_proj"), self.kv_heads), f"{name}.k_norm")
        value = op.transpose(self.split_heads(self.linear(x, f"{name}.v_proj"), self.kv_heads), order)
        query = rotate(op.transpose(query, order), cos, sin, self.head_dim)
        key = self.cached(rotate(op.transpose(key, order), cos, sin, self.head_dim), f"{layer}.key")
        value = self.cached(value, f"{layer}.value")
        scale = op.constant(np.float32(self.head_dim**-0.5))
        mixed = op.scaled_dot_product_attention(query, key, value, mask, scale, causal=False)
        wide = np.array([0, 0, self.heads * self.head_dim], np.int64)
        return self.linear(op.reshape(op.transpose(mixed, order), wide, True), f"{name}.o_proj")

    def mlp(self, x: ov.Node, name: str) -> ov.Node:
        gate = op.swish(self.linear(x, f"{name}.gate_proj"))
        return self.linear(op.multiply(gate, self.linear(x, f"{name}.up_proj")), f"{name}.down_proj")

    def model(self) -> ov.Model:
        table = self.matrix("model.embed_tokens")
        x = op.gather(table, op.convert(self.ids, ov.Type.i32), np.int32(0))
        cos, sin = self.angles()
        mask = self.mask()
        for number in range(self.config["num_hidden_layers"]):
            layer = f"model.layers.{number}"
            x = op.add(x, self.attention(self.norm(x, f"{layer}.input_layernorm"), layer, cos, sin, mask))
            x = op.add(x, self.mlp(self.norm(x, f"{layer}.post_attention_layernorm"), f"{layer}.mlp"))
        x = op.gather(x, self.wanted, np.int64(1))
        x = self.norm(x, "model.norm")
        tied = self.config.get("tie_word_embeddings")
        head = table if tied else self.matrix("lm_head")
        result = op.result(op.matmul(x, head, False, True), name="logits")
        return ov.Model([result], self.sinks, self.inputs, self.variables, "qwen3")


def info(shape: list[int], name: str) -> VariableInfo:
    made = VariableInfo()
    made.data_shape = ov.PartialShape(shape)
    made.data_type = ov.Type.f32
    made.variable_id = name
    return made


def write(folder: Path, config: dict, out: Path, symmetric: bool) -> None:
    """Makes `out/openvino_model.xml` and its `.bin`."""
    out.mkdir()
    model = Builder(config, Weights(folder), symmetric).model()
    ov.save_model(model, out / "openvino_model.xml", compress_to_fp16=False)
