"""Reads a Chrome JSON trace with Holistic Trace Analysis and prints what it computes as JSON.

usage: python holistic.py FILE

Not here: what the numbers should be; the caller compares.
"""

import json
import logging
import pathlib
import sys

from hta.trace_analysis import TraceAnalysis


def main():
    if len(sys.argv) != 2:
        print("usage: python holistic.py FILE", file=sys.stderr)
        sys.exit(2)
    logging.disable(logging.WARNING)
    path = pathlib.Path(sys.argv[1]).resolve()
    analysis = TraceAnalysis(trace_files={0: str(path)}, trace_dir=str(path.parent))
    temporal = analysis.get_temporal_breakdown(visualize=False)
    idle, _ = analysis.get_idle_time_breakdown(ranks=[0], visualize=False)
    _, kernels = analysis.get_gpu_kernel_breakdown(visualize=False)
    found = {"temporal": temporal, "idle": idle, "kernels": kernels}
    print(json.dumps({name: json.loads(frame.to_json(orient="records")) for name, frame in found.items()}))


main()
