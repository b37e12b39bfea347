"""transformers as a peer: torch on the CPU, weights in 4-bit groups of 128 by torchao, eager.

Not here: the model and its requests (eager.py), the clock and the lines (protocol.py).
"""

from __future__ import annotations

import argparse
import warnings

import protocol

given = protocol.arguments(__doc__)
import eager  # noqa: E402, an engine that is missing is told after wrong arguments

with protocol.needs("transformers"), warnings.catch_warnings(action="ignore"):
    from torchao.prototype.quantization.int4.inference_workflow import PrototypeInt4WeightOnlyConfig
    from torchao.quantization import quantize_

GROUP = 128


def main(given: argparse.Namespace) -> None:
    if given.prepare:
        # torchao packs in seconds at every start, in a layout that belongs to the processor: nothing is kept.
        return
    config = PrototypeInt4WeightOnlyConfig(group_size=GROUP, set_inductor_config=False)
    eager.run(
        given,
        f"INT4 g{GROUP}, embedding BF16",
        [f"BF16 to INT4 in groups of {GROUP} in every projection and the head (torchao PrototypeInt4WeightOnlyConfig)"],
        {"torchao": protocol.version("torchao")},
        lambda model: quantize_(model, config),
    )


if __name__ == "__main__":
    main(given)
