"""OpenVINO as a peer: INT4 weights in groups of 128, its stateful key-value cache, one stream for latency.

Not here: the graph (openvino_model.py), the clock and the lines (protocol.py).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import protocol

given = protocol.arguments(__doc__)
protocol.qwen3_only(given, "openvino")
with protocol.needs("openvino"):
    import numpy as np
    import openvino as ov
import openvino_model

# The best of the settings that docs/peers.md lists.
SYMMETRIC = False
SETTINGS = {
    "PERFORMANCE_HINT": "LATENCY",
    "INFERENCE_PRECISION_HINT": "f32",
}


class Request:
    """A request on an emptied state."""

    def __init__(self, infer: ov.InferRequest, all_logits: bool) -> None:
        self.infer = infer
        self.all_logits = all_logits
        self.infer.reset_state()
        self.length = 0
        self.beam = np.zeros(1, np.int32)

    def prefill(self, ids: Sequence[int]) -> int:
        inputs = {
            "input_ids": np.array([ids], np.int64),
            "positions": np.arange(self.length, self.length + len(ids), dtype=np.int64),
            "beam_idx": self.beam,
            "wanted": np.arange(0 if self.all_logits else len(ids) - 1, len(ids), dtype=np.int64),
        }
        self.infer.infer(inputs, share_inputs=True)
        self.length += len(ids)
        return int(self.infer.get_output_tensor(0).data[0, -1].argmax())

    def step(self, token: int) -> int:
        return self.prefill([token])

    def close(self) -> None:
        self.infer.reset_state()


def main(given: argparse.Namespace) -> None:
    all_logits = given.prefill_logits == "all"
    form = f"INT4_{'SYM' if SYMMETRIC else 'ASYM'}"
    name = f"openvino-{form.lower()}-g{openvino_model.GROUP}"

    def convert(path: Path) -> None:
        openvino_model.write(given.model, given.config, path, SYMMETRIC)

    path = protocol.converted(given.cache, name, convert)
    if given.prepare:
        return
    settings = {**SETTINGS, "INFERENCE_NUM_THREADS": given.threads, "NUM_STREAMS": 1}
    compiled = ov.Core().compile_model(path / "openvino_model.xml", "CPU", settings)
    # What it made of the settings, its defaults among them.
    resolved = {
        name.lower(): str(compiled.get_property(name))
        for name in (
            "PERFORMANCE_HINT",
            "INFERENCE_PRECISION_HINT",
            "INFERENCE_NUM_THREADS",
            "NUM_STREAMS",
            "KV_CACHE_PRECISION",
            "DYNAMIC_QUANTIZATION_GROUP_SIZE",
            "ENABLE_CPU_PINNING",
            "ENABLE_HYPER_THREADING",
            "EXECUTION_MODE_HINT",
        )
    }
    head = protocol.header(
        "openvino",
        ov.__version__,
        {**resolved, "prefill_logits": given.prefill_logits, "prefix_cache": "none: the state is reset before each request"},
        f"{form} g{openvino_model.GROUP}",
        [f"BF16 to {form} in groups of {openvino_model.GROUP} in every matrix, the embedding and head included (openvino_model.py)"],
    )
    infer = compiled.create_infer_request()
    protocol.run(given, head, lambda: Request(infer, all_logits))


if __name__ == "__main__":
    main(given)
