"""Hourglass and llama.cpp on the same work in one run, alternated: A B B A, and so on.

Each sample is a fresh process: a warmed request of 128 prompt tokens and 129 new ones, on weights of Qwen3-0.6B's shapes
(hourglass: W4 in groups of 128, 316.6 MB per token; llama.cpp: Q4_0 throughout, 335.5 MB per token). Prints every
sample, the medians with their range, and the median of the ratios of neighbouring samples.

    peers/setup.sh && cargo build --release
    .venv/bin/python peers/alternate.py --rounds 6

Not here: statistics beyond medians, other peers.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GGUF = ROOT / "downloads" / "random-qwen3-0.6b-q4_0.gguf"
PHASES = ("prefill", "decode")


def rates_of_hourglass(arguments: argparse.Namespace) -> dict[str, float]:
    command = [
        str(ROOT / "target/release/hourglass"), "find", "--json", "--checkpoint", arguments.checkpoint,
        "--input-len", str(arguments.input_len), "--output-len", str(arguments.output_len),
        "--threads", str(arguments.threads), "--iterations", "1", "--warmup", "1",
    ]  # fmt: skip
    request = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["request"]
    return {phase: request[f"{phase}_rate"]["value"] for phase in PHASES}


def rates_of_llama_cpp(arguments: argparse.Namespace) -> dict[str, float]:
    command = [
        sys.executable, str(ROOT / "peers/llama_cpp.py"), "--model", str(GGUF),
        "--input-len", str(arguments.input_len), "--output-len", str(arguments.output_len),
        "--threads", str(arguments.threads), "--warmup", "1", "--repeats", "1",
    ]  # fmt: skip
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    sample = json.loads(lines[-1])
    return {
        "prefill": arguments.input_len / sample["prefill_s"],
        "decode": (arguments.output_len - 1) / sample["decode_s"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoint", default="selected")
    parser.add_argument("--rounds", type=int, default=6, help="samples of each side")
    parser.add_argument("--input-len", type=int, default=128)
    parser.add_argument("--output-len", type=int, default=129)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error("--rounds must be at least 1")
    if not GGUF.exists():
        GGUF.parent.mkdir(exist_ok=True)
        make = [sys.executable, str(ROOT / "peers/make_gguf.py"), "--random", "qwen3-0.6b", str(GGUF)]
        subprocess.run(make, check=True, stdout=subprocess.DEVNULL)
    sides = {"hourglass": rates_of_hourglass, "llama.cpp": rates_of_llama_cpp}
    samples: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    for round_number in range(arguments.rounds):
        order = list(sides) if round_number % 2 == 0 else list(reversed(sides))
        for name in order:
            rates = sides[name](arguments)
            samples[name].append(rates)
            print(f"{round_number + 1}: {name:<10} prefill {rates['prefill']:7.1f}  decode {rates['decode']:6.1f} tok/s", flush=True)
    for phase in PHASES:
        for name in sides:
            values = [sample[phase] for sample in samples[name]]
            middle = statistics.median(values)
            print(f"{phase:<8} {name:<10} median {middle:7.1f} tok/s ({min(values):.1f} to {max(values):.1f}, n = {len(values)})")
        ratios = [ours[phase] / theirs[phase] for ours, theirs in zip(samples["hourglass"], samples["llama.cpp"], strict=True)]
        print(f"{phase:<8} hourglass {arguments.checkpoint} / llama.cpp {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()
