"""The BF16 tensors of a directory of safetensors, as float32.

Not here: what an engine makes of them.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np


class Weights:
    """Every tensor by its name; values are read when asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tensors: dict[str, tuple[np.ndarray, tuple[int, ...]]] = {}
        for path in sorted(folder.glob("*.safetensors")):
            data = np.memmap(path, dtype=np.uint8, mode="r")
            start = 8 + int(data[:8].view("<u8")[0])
            for name, entry in json.loads(data[8:start].tobytes()).items():
                if name == "__metadata__":
                    continue
                if entry["dtype"] != "BF16":
                    raise SystemExit(f"{path}: tensor {name}: expected BF16, found {entry['dtype']}")
                begin, end = entry["data_offsets"]
                self.tensors[name] = data[start + begin : start + end], tuple(entry["shape"])

    def values(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """float32, which holds BF16 exactly."""
        if name not in self.tensors:
            raise SystemExit(f"{self.folder}: there is no tensor {name}")
        stored, found = self.tensors[name]
        if found != shape:
            raise SystemExit(f"{self.folder}: tensor {name}: config.json says {shape}, found {found}")
        return (stored.view("<u2").astype(np.uint32) << 16).view(np.float32).reshape(shape)
