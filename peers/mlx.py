"""MLX as a peer: mlx-lm on MLX's CPU backend, its own 4-bit groups of 128.

Not here: the clock and the lines (protocol.py).
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

import protocol

given = protocol.arguments(__doc__)
os.environ["HF_HUB_OFFLINE"] = "1"
# MLX's own threads; its matrix products are single-threaded on this backend.
os.environ["OMP_NUM_THREADS"] = str(given.threads)
with protocol.needs("mlx"):
    import mlx.core as mx
    from mlx_lm.models.cache import make_prompt_cache
    from mlx_lm.utils import load_model, quantize_model, save_config, save_model

GROUP = 128


class Request:
    """A request with a cache of its own."""

    def __init__(self, model: object, all_logits: bool) -> None:
        self.model = model
        self.all_logits = all_logits
        self.cache = make_prompt_cache(model)

    def prefill(self, ids: Sequence[int]) -> int:
        tokens = mx.array([ids])
        if self.all_logits:
            logits = self.model(tokens, cache=self.cache)
            mx.eval(logits)
        else:
            # The whole model would compute the head for every row.
            last = self.model.model(tokens, cache=self.cache)[:, -1:]
            tied = self.model.args.tie_word_embeddings
            logits = self.model.model.embed_tokens.as_linear(last) if tied else self.model.lm_head(last)
        return logits[0, -1].argmax().item()

    def step(self, token: int) -> int:
        return self.prefill([token])

    def close(self) -> None:
        del self.cache


def convert(path: Path) -> None:
    model, config = load_model(given.model, lazy=True)
    model, config = quantize_model(model, config, group_size=GROUP, bits=4)
    path.mkdir()
    save_model(path, model)
    save_config(config, path / "config.json")


def main(given: argparse.Namespace) -> None:
    mx.set_default_device(mx.cpu)
    path = protocol.converted(given.cache, f"mlx-4bit-g{GROUP}", convert)
    if given.prepare:
        return
    with protocol.stdout_to_stderr():
        model, _ = load_model(path)
    head = protocol.header(
        "mlx",
        protocol.version("mlx"),
        {
            "mlx_lm": protocol.version("mlx-lm"),
            "device": str(mx.default_device()),
            "cache": "mlx-lm's prompt cache, bfloat16",
            "prefill_logits": given.prefill_logits,
            "prefix_cache": "none: each request has a cache of its own",
        },
        f"W4 g{GROUP} (MLX)",
        [f"BF16 to 4-bit affine in groups of {GROUP} in every matrix, the embedding and head included (mlx-lm)"],
    )
    protocol.run(given, head, lambda: Request(model, given.prefill_logits == "all"))


if __name__ == "__main__":
    main(given)
