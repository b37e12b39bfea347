"""What both adapters of transformers share: the model on the CPU, eager, and requests with a cache of their own.

Not here: the form of the weights (transformers.py, transformers_bf16.py), the clock and the lines (protocol.py).
"""

from __future__ import annotations

import argparse
import os
import warnings
from collections.abc import Callable, Sequence

import protocol

# Nothing is fetched: the model is a directory, and a look for a newer one would be measured.
os.environ["HF_HUB_OFFLINE"] = "1"
with protocol.needs("transformers"), warnings.catch_warnings(action="ignore"):
    import torch
    from transformers import AutoModelForCausalLM, DynamicCache
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


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


def run(
    given: argparse.Namespace,
    form: str,
    conversions: Sequence[str],
    settings: dict[str, protocol.Setting],
    convert: Callable[[torch.nn.Module], None],
) -> None:
    """Loads in bfloat16, lets `convert` change the weights in place, and serves the request."""
    torch.set_num_threads(given.threads)
    with protocol.stdout_to_stderr():
        model = AutoModelForCausalLM.from_pretrained(given.model, dtype=torch.bfloat16, attn_implementation="sdpa")
        model.eval()
        convert(model)
    head = protocol.header(
        "transformers",
        protocol.version("transformers"),
        {
            "torch": torch.__version__,
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
            "attention": "sdpa",
            "cache": "DynamicCache, bfloat16",
            "compiled": False,
            "prefill_logits": given.prefill_logits,
            "prefix_cache": "none: each request has a cache of its own",
            **settings,
        },
        form,
        list(conversions),
    )
    protocol.run(given, head, lambda: Request(model, given.prefill_logits == "all"))
