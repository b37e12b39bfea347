"""llama.cpp as a peer: greedy requests over token ids, timed as hourglass times its own.

Prints JSON lines: a header (engine, build, settings), then one line for each measured request:
  {"request", "prefill_s", "decode_s", "step_s": [...], "tokens": [...], "peak_rss_bytes"}
prefill_s covers the whole prompt's call and the choice of the first token; decode_s is the sum of
step_s, one entry for each further token (call and choice). Seconds, all. The cache is cleared and
the ids are made before the clock starts, the end token does not stop a request, and only the
last prompt position's logits are computed. Each measured request follows `--warmup` others in
this same process.

Not here: making the GGUF file (make_gguf.py).
"""

from __future__ import annotations

import argparse
import ctypes
import json
import random
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path

# This file has the binding's name: without its folder on the path the import finds the binding.
HERE = Path(__file__).resolve().parent
sys.path = [entry for entry in sys.path if Path(entry or ".").resolve() != HERE]

import llama_cpp as llama  # noqa: E402
import numpy as np  # noqa: E402


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="a GGUF file")
    parser.add_argument("--input-len", type=int, default=128, help="prompt tokens")
    parser.add_argument("--output-len", type=int, default=129, help="generated tokens, at least 2")
    parser.add_argument("--warmup", type=int, default=2, help="unmeasured requests first")
    parser.add_argument("--repeats", type=int, default=1, help="measured requests")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0, help="of the prompt ids")
    parser.add_argument("--ids-file", type=Path, help="JSON array of prompt ids instead of a seed")
    arguments = parser.parse_args()
    if arguments.output_len < 2:
        parser.error("--output-len must be at least 2: one token from prefill, one from decode")
    for flag in ("input_len", "repeats", "threads"):
        if getattr(arguments, flag) < 1:
            parser.error(f"--{flag.replace('_', '-')} must be at least 1")
    return arguments


def seeded_ids(count: int, seed: int, vocabulary: int, eos: int) -> list[int]:
    """Uniform in [256, vocabulary), or in all of a small vocabulary; never `eos`."""
    generator = random.Random(seed)
    first = 256 if vocabulary > 512 else 0
    ids = [generator.randint(first, vocabulary - 1) for _ in range(count)]
    return [token if token != eos else (token - 1 if token > first else token + 1) for token in ids]


def read_ids(path: Path) -> list[int]:
    """A JSON array of token ids; whether the model has them is checked once it is loaded."""
    ids = json.loads(path.read_text())
    if not isinstance(ids, list) or not ids or not all(type(token) is int for token in ids):
        sys.exit(f"{path}: want one JSON array of token ids, not empty")
    return ids


class Engine:
    """One loaded model with one context; every call below is llama.cpp's C interface."""

    def __init__(self, path: str, context: int, threads: int) -> None:
        # Its log goes nowhere: stdout is for results, and a failure is reported below.
        self.quiet = llama.llama_log_callback(lambda level, text, data: None)
        llama.llama_log_set(self.quiet, ctypes.c_void_p(0))
        llama.llama_backend_init()
        self.model = llama.llama_model_load_from_file(
            path.encode(), llama.llama_model_default_params()
        )
        if not self.model:
            sys.exit(f"{path}: llama.cpp cannot load this file; is it a GGUF it supports?")
        settings = llama.llama_context_default_params()
        settings.n_ctx = context
        settings.n_batch = context
        settings.n_threads = threads
        settings.n_threads_batch = threads
        self.settings = settings
        self.context = llama.llama_init_from_model(self.model, settings)
        if not self.context:
            sys.exit(f"{path}: llama.cpp cannot make a context of {context} tokens")
        vocab = llama.llama_model_get_vocab(self.model)
        self.vocabulary = llama.llama_vocab_n_tokens(vocab)
        self.eos = llama.llama_vocab_eos(vocab)

    def clear(self) -> None:
        llama.llama_memory_clear(llama.llama_get_memory(self.context), True)

    def next_token(self, ids: Sequence[int]) -> int:
        """Feeds `ids` after what the cache holds; the best token at the last position."""
        array = (llama.llama_token * len(ids))(*ids)
        status = llama.llama_decode(self.context, llama.llama_batch_get_one(array, len(ids)))
        if status != 0:
            sys.exit(f"llama_decode of {len(ids)} tokens failed with status {status}")
        logits = llama.llama_get_logits_ith(self.context, -1)
        return int(np.ctypeslib.as_array(logits, shape=(self.vocabulary,)).argmax())

    def describe(self) -> str:
        text = ctypes.create_string_buffer(256)
        llama.llama_model_desc(self.model, text, len(text))
        return text.value.decode()


def request(engine: Engine, ids: list[int], output_len: int) -> dict[str, object]:
    """One whole request: prefill gives the first token, each later step gives one more."""
    engine.clear()
    start = time.perf_counter()
    tokens = [engine.next_token(ids)]
    prefill = time.perf_counter() - start
    steps = []
    while len(tokens) < output_len:
        start = time.perf_counter()
        tokens.append(engine.next_token(tokens[-1:]))
        steps.append(time.perf_counter() - start)
    return {"prefill_s": prefill, "decode_s": sum(steps), "step_s": steps, "tokens": tokens}


def header(arguments: argparse.Namespace, engine: Engine, ids: list[int]) -> dict[str, object]:
    settings = engine.settings
    return {
        "engine": "llama.cpp",
        "version": llama.llama_version().decode(),
        "binding": f"llama-cpp-python {llama.__version__}",
        "system_info": llama.llama_print_system_info().decode().strip(" |"),
        "model": {
            "file": Path(arguments.model).name,
            "description": engine.describe(),
            "parameters": llama.llama_model_n_params(engine.model),
            "tensor_bytes": llama.llama_model_size(engine.model),
        },
        "settings": {
            "threads": arguments.threads,
            "context": llama.llama_n_ctx(engine.context),
            "batch": llama.llama_n_batch(engine.context),
            "micro_batch": llama.llama_n_ubatch(engine.context),
            "cache_type": {0: "f32", 1: "f16"}[settings.type_k],
            "flash_attention": llama.llama_flash_attn_type_name(settings.flash_attn_type).decode(),
            "prefill_logits": "last",
            "warmup": arguments.warmup,
        },
        "prompt_ids": ids,
    }


def main() -> None:
    arguments = parse_arguments()
    given = None if arguments.ids_file is None else read_ids(arguments.ids_file)
    length = arguments.input_len if given is None else len(given)
    engine = Engine(arguments.model, length + arguments.output_len, arguments.threads)
    ids = given or seeded_ids(length, arguments.seed, engine.vocabulary, engine.eos)
    if not all(0 <= token < engine.vocabulary for token in ids):
        sys.exit(f"{arguments.ids_file}: the model's ids end at {engine.vocabulary - 1}")
    print(json.dumps(header(arguments, engine, ids)), flush=True)
    for _ in range(arguments.warmup):
        request(engine, ids, arguments.output_len)
    for index in range(arguments.repeats):
        result = request(engine, ids, arguments.output_len)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps({"request": index, **result, "peak_rss_bytes": peak}), flush=True)


if __name__ == "__main__":
    main()
