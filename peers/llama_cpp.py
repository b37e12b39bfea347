"""llama.cpp as a peer, through its C interface: every matrix in Q4_0.

Not here: making the GGUF file (make_gguf.py), the clock and the lines (protocol.py).
"""

from __future__ import annotations

import argparse
import ctypes
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import protocol

given = protocol.arguments(__doc__)
protocol.qwen3_only(given, "llama.cpp")
with protocol.needs("llama.cpp"):
    import gguf  # noqa: F401, make_gguf.py needs it
    import llama_cpp as llama
    import numpy as np


class Engine:
    """One loaded model with one context."""

    def __init__(self, path: Path, context: int, threads: int) -> None:
        # Its log goes nowhere: a failure is reported below.
        self.quiet = llama.llama_log_callback(lambda level, text, data: None)
        llama.llama_log_set(self.quiet, ctypes.c_void_p(0))
        llama.llama_backend_init()
        self.model = llama.llama_model_load_from_file(str(path).encode(), llama.llama_model_default_params())
        if not self.model:
            sys.exit(f"{path}: llama.cpp cannot load this file; remove it, and it is made again")
        settings = llama.llama_context_default_params()
        settings.n_ctx = context
        settings.n_batch = context
        settings.n_threads = threads
        settings.n_threads_batch = threads
        self.settings = settings
        self.context = llama.llama_init_from_model(self.model, settings)
        if not self.context:
            sys.exit(f"{path}: llama.cpp cannot make a context of {context} tokens")
        self.vocabulary = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(self.model))

    def describe(self) -> str:
        text = ctypes.create_string_buffer(256)
        llama.llama_model_desc(self.model, text, len(text))
        return text.value.decode()


class Request:
    """A request with an emptied cache."""

    def __init__(self, engine: Engine, all_logits: bool) -> None:
        self.engine = engine
        self.all_logits = all_logits
        self.clear()

    def clear(self) -> None:
        llama.llama_memory_clear(llama.llama_get_memory(self.engine.context), True)

    def prefill(self, ids: Sequence[int]) -> int:
        if not self.all_logits:
            return self.step(*ids)
        batch = llama.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for at, token in enumerate(ids):
            batch.token[at] = token
            batch.pos[at] = at
            batch.n_seq_id[at] = 1
            batch.seq_id[at][0] = 0
            batch.logits[at] = 1
        token = self.decode(batch, len(ids))
        llama.llama_batch_free(batch)
        return token

    def step(self, *ids: int) -> int:
        array = (llama.llama_token * len(ids))(*ids)
        return self.decode(llama.llama_batch_get_one(array, len(ids)), len(ids))

    def decode(self, batch: llama.llama_batch, count: int) -> int:
        status = llama.llama_decode(self.engine.context, batch)
        if status != 0:
            sys.exit(f"llama_decode of {count} tokens failed with status {status}")
        logits = llama.llama_get_logits_ith(self.engine.context, -1)
        return int(np.ctypeslib.as_array(logits, shape=(self.engine.vocabulary,)).argmax())

    def close(self) -> None:
        self.clear()


def convert(path: Path) -> None:
    script = Path(__file__).with_name("make_gguf.py")
    status = subprocess.run([sys.executable, script, "--from", given.model, path], check=False).returncode
    if status != 0:
        sys.exit(f"llama.cpp: {script} could not convert {given.model} (exit code {status}); its message is above")


def main(given: argparse.Namespace) -> None:
    path = protocol.converted(given.cache, "llama.cpp-q4_0-pure.gguf", convert)
    if given.prepare:
        return
    engine = Engine(path, len(given.ids) + given.output_len, given.threads)
    head = protocol.header(
        "llama.cpp",
        llama.llama_version().decode(),
        {
            "binding": f"llama-cpp-python {llama.__version__}",
            "system_info": llama.llama_print_system_info().decode().strip(" |"),
            "model": engine.describe(),
            "tensor_bytes": llama.llama_model_size(engine.model),
            "context": llama.llama_n_ctx(engine.context),
            "batch": llama.llama_n_batch(engine.context),
            "micro_batch": llama.llama_n_ubatch(engine.context),
            "cache_type": {0: "f32", 1: "f16"}.get(engine.settings.type_k, str(engine.settings.type_k)),
            "flash_attention": llama.llama_flash_attn_type_name(engine.settings.flash_attn_type).decode(),
            "prefill_logits": given.prefill_logits,
            "prefix_cache": "none: the cache is cleared before each request",
        },
        "Q4_0",
        ["BF16 to Q4_0 in every matrix, the embedding and head included (make_gguf.py)"],
    )
    protocol.run(given, head, lambda: Request(engine, given.prefill_logits == "all"))


if __name__ == "__main__":
    main(given)
