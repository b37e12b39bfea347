"""What every adapter shares: arguments, prompt ids, the clock of one request, and the lines of `bench-child/1`.

An adapter loads one engine in one process, runs `--warmup` whole requests, then one that is measured, and prints JSON lines: a
header, then the request. An engine that cannot run here prints one `unavailable` line instead and exits with 3.

Not here: anything that knows an engine.
"""

from __future__ import annotations

import argparse
import gc
import importlib.metadata
import json
import os
import random
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn, Protocol

PROTOCOL = "bench-child/1"
UNAVAILABLE_EXIT = 3

Setting = str | int | float | bool


class Request(Protocol):
    """One request's state: made before the prefill clock starts, freed by `close` inside the whole request's."""

    def prefill(self, ids: Sequence[int]) -> int: ...
    def step(self, token: int) -> int: ...
    def close(self) -> None: ...


def arguments(description: str | None) -> argparse.Namespace:
    """The adapters' command line; whatever is wrong with it ends the process with 2."""
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="directory with config.json and BF16 safetensors")
    parser.add_argument("--cache", type=Path, required=True, help="directory for this model's conversions")
    parser.add_argument("--ids-file", type=Path, help="JSON array of prompt token ids")
    parser.add_argument("--output-len", type=int, default=129, help="tokens to generate")
    parser.add_argument("--warmup", type=int, default=2, help="unmeasured requests first")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--prefill-logits", choices=("last", "all"), default="last")
    parser.add_argument("--prepare", action="store_true", help="only convert the model into --cache")
    given = parser.parse_args()
    for flag, least in (("output_len", 1), ("warmup", 0), ("threads", 1)):
        value = getattr(given, flag)
        if value < least:
            parser.error(f"--{flag.replace('_', '-')} {value}: expected at least {least}")
    for name in ("config.json", "model.safetensors"):
        sharded = name == "model.safetensors" and (given.model / "model.safetensors.index.json").is_file()
        if not sharded and not (given.model / name).is_file():
            parser.error(f"--model {given.model}: expected a directory with {name}, found none")
    if not given.prepare and given.ids_file is None:
        parser.error("--ids-file: needed unless --prepare is given")
    given.config = json.loads((given.model / "config.json").read_text())
    given.ids = None if given.ids_file is None else read_ids(parser, given.ids_file, given.config["vocab_size"])
    given.cache.mkdir(parents=True, exist_ok=True)
    return given


def read_ids(parser: argparse.ArgumentParser, path: Path, vocabulary: int) -> list[int]:
    try:
        ids = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        parser.error(f"--ids-file {path}: expected a JSON array of token ids: {error}")
    if not isinstance(ids, list) or not ids or not all(type(token) is int for token in ids):
        parser.error(f"--ids-file {path}: expected one JSON array of token ids, not empty")
    if not all(0 <= token < vocabulary for token in ids):
        parser.error(f"--ids-file {path}: the model's ids are 0 to {vocabulary - 1}")
    return ids


def version(package: str) -> str:
    return importlib.metadata.version(package)


def line(value: dict[str, object]) -> None:
    print(json.dumps(value, allow_nan=False), flush=True)


def unavailable(why: str, how_to_get: str) -> NoReturn:
    """This engine cannot run here."""
    line({"kind": "unavailable", "why": why, "how_to_get": how_to_get})
    sys.exit(UNAVAILABLE_EXIT)


@contextmanager
def needs(peer: str) -> Iterator[None]:
    """Around an adapter's imports: a package that is missing or does not load makes the engine unavailable."""
    # An adapter may have the name of the package that it imports: its folder comes last from here on.
    here = Path(__file__).resolve().parent
    sys.path = [entry for entry in sys.path if Path(entry or ".").resolve() != here]
    # A progress bar or a greeting on stdout would not be a line of the protocol.
    try:
        with stdout_to_stderr():
            yield
    except ImportError as error:
        unavailable(f"{peer}: {error}", f"cargo xtask peers {peer}")
    sys.path.append(str(here))


@contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """What a library prints, also from C, goes to stderr: stdout is for the protocol."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def qwen3_only(given: argparse.Namespace, engine: str) -> None:
    kind = given.config.get("model_type")
    if kind != "qwen3":
        unavailable(f"{engine}: this adapter converts model_type qwen3, found {kind!r}", "use a Qwen3 model")


def converted(cache: Path, name: str, make: Callable[[Path], None]) -> Path:
    """`cache / name`, a file or directory, made by `make(path)` if it is not there; it appears whole or not at all."""
    final = cache / name
    if final.exists():
        return final
    scratch = Path(tempfile.mkdtemp(prefix=f".{name}.partial-", dir=cache))
    try:
        with stdout_to_stderr():
            make(scratch / name)
        try:
            (scratch / name).rename(final)
        except OSError:
            # Another process finished the same conversion first.
            if not final.exists():
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return final


def header(
    engine: str, engine_version: str, settings: dict[str, Setting], weights_form: str, conversions: list[str]
) -> dict[str, object]:
    return {
        "kind": "header",
        "protocol": PROTOCOL,
        "engine": engine,
        "version": engine_version,
        "settings": settings,
        "weights_form": weights_form,
        "conversions": conversions,
    }


def timed(start_request: Callable[[], Request], ids: Sequence[int], output_len: int) -> dict[str, object]:
    """One whole greedy request. The end token does not stop it."""
    begin = time.perf_counter()
    request = start_request()
    times: list[float] = []
    last = time.perf_counter()
    tokens = [request.prefill(ids)]
    now = time.perf_counter()
    times.append(now - last)
    to_first = now - begin
    while len(tokens) < output_len:
        last = time.perf_counter()
        tokens.append(request.step(tokens[-1]))
        times.append(time.perf_counter() - last)
    request.close()
    whole = time.perf_counter() - begin
    return {
        "prefill_s": times[0],
        "token_s": times,
        "to_first_token_s": to_first,
        "request_s": whole,
        "tokens": tokens,
    }


def warmup_ids(ids: Sequence[int], number: int, vocabulary: int) -> list[int]:
    """As many ids as the measured prompt, the first one different: no cache of prefixes helps the measured request."""
    generator = random.Random(number)
    low = 256 if vocabulary > 512 else 0
    other = [generator.randint(low, vocabulary - 1) for _ in ids]
    if other[0] == ids[0]:
        other[0] = (other[0] + 1) % vocabulary
    return other


def run(given: argparse.Namespace, head: dict[str, object], start_request: Callable[[], Request]) -> None:
    """The header, the warm-up requests, then the measured one. Settings that all adapters share are added here."""
    settings = head["settings"]
    assert isinstance(settings, dict)
    settings["threads"] = given.threads
    settings["warmup"] = given.warmup
    settings["warmup_prompts"] = "other ids of the same length"
    line(head)
    vocabulary = given.config["vocab_size"]
    with stdout_to_stderr():
        for number in range(given.warmup):
            timed(start_request, warmup_ids(given.ids, number, vocabulary), given.output_len)
        gc.collect()
        before = resource.getrusage(resource.RUSAGE_SELF)
        result = timed(start_request, given.ids, given.output_len)
        after = resource.getrusage(resource.RUSAGE_SELF)
    line({
        "kind": "request",
        **result,
        "peak_allocation_bytes": {
            "unavailable": "the engine has no counter of its allocations",
            "how_to_get": "compare peak_rss_bytes, which covers the whole process",
        },
        "peak_rss_bytes": after.ru_maxrss * 1024,
        "involuntary_switches": after.ru_nivcsw - before.ru_nivcsw,
    })
