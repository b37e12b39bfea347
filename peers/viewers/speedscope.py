"""Checks a speedscope file against speedscope's own schema; prints nothing if it fits.

usage: python speedscope.py FILE
"""

import json
import pathlib
import sys

import jsonschema


def main():
    if len(sys.argv) != 2:
        print("usage: python speedscope.py FILE", file=sys.stderr)
        sys.exit(2)
    schema = json.loads((pathlib.Path(sys.prefix) / "speedscope-schema.json").read_text())
    jsonschema.validate(json.loads(pathlib.Path(sys.argv[1]).read_text()), schema)


main()
