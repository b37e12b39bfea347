"""transformers as a peer: torch on the CPU, weights in bfloat16 as they are stored, eager.

Not here: the model and its requests (eager.py), the clock and the lines (protocol.py).
"""

from __future__ import annotations

import protocol

given = protocol.arguments(__doc__)
import eager  # noqa: E402, an engine that is missing is told after wrong arguments

if __name__ == "__main__" and not given.prepare:
    eager.run(given, "BF16", ["none: BF16 as stored"], {}, lambda model: None)
