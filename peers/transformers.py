"""transformers as a peer: torch on the CPU, weights in 4-bit groups of 128 by torchao, eager.

Not here: the clock and the lines (protocol.py).
"""

from __future__ import annotations

import argparse
import os
import warnings
from collections.abc import Sequence

import protocol

given = protocol.arguments(__doc__)
# Nothing is fetched: the model is a directory, and a look for a newer one would be measured.
os.environ["HF_HUB_OFFLINE"] = "1"
with protocol.needs("transformers"), warnings.catch_warnings(action="ignore"):
    import torch
    from torchao.prototype.quantization.int4.inference_workflow import PrototypeInt4WeightOnlyConfig
    from torchao.quantization import quantize_
    from transformers import AutoModelForCausalLM, DynamicCache
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()

GROUP = 128


class Request:
    """A request with a cache of its own."""

    def __init__(self, model: torch.nn.Module, all_logits: bool) -> None:
        self.model = model
        self.keep = 0 if all_logits else 1
        self.cache = DynamicCache(config=model.config)

    def prefill(self, ids: Sequence[int]) -> int:
        with torch.inference_mode():
            answer = self.model(
                torch.tensor([ids]), cache=self.cache, use_cache=True, logits_to_keep=self.keep
            )
            return int(answer.logits[0, -1].argmax())

    def step(self, token: int) -> int:
        return self.prefill([token])

    def close(self) -> None:
        del self.cache


def main(given: argparse.Namespace) -> None:
    if given.prepare:
        # torchao packs in seconds at every start, in a layout that belongs to the processor: nothing is kept.
        return
    torch.set_num_threads(given.threads)
    with protocol.stdout_to_stderr():
        model = AutoModelForCausalLM.from_pretrained(given.model, dtype=torch.bfloat16, attn_implementation="sdpa")
        model.eval()
        quantize_(model, PrototypeInt4WeightOnlyConfig(group_size=GROUP, set_inductor_config=False))
    head = protocol.header(
        "transformers",
        protocol.version("transformers"),
        {
            "torch": torch.__version__,
            "torchao": protocol.version("torchao"),
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
            "attention": "sdpa",
            "cache": "DynamicCache, bfloat16",
            "compiled": False,
            "prefill_logits": given.prefill_logits,
            "prefix_cache": "none: each request has a cache of its own",
        },
        f"INT4 g{GROUP}, embedding BF16",
        [f"BF16 to INT4 in groups of {GROUP} in every projection and the head (torchao PrototypeInt4WeightOnlyConfig)"],
    )
    protocol.run(given, head, lambda: Request(model, given.prefill_logits == "all"))


if __name__ == "__main__":
    main(given)
