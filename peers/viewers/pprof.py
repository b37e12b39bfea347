"""Reads a pprof profile with the protobuf library and prints, as JSON, what it holds by stack.

usage: python pprof.py FILE

The message types are declared here from the field numbers of pprof's profile.proto, so that the library decodes the file
without generated code.
"""

import gzip
import json
import sys

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

INT64, UINT64, BOOL, MESSAGE, STRING = 3, 4, 8, 11, 9
# message: [(name, number, type, repeated, type of message)]
FIELDS = {
    "ValueType": [("type", 1, INT64, False, None), ("unit", 2, INT64, False, None)],
    "Label": [("key", 1, INT64, False, None), ("str", 2, INT64, False, None)],
    "Sample": [
        ("location_id", 1, UINT64, True, None),
        ("value", 2, INT64, True, None),
        ("label", 3, MESSAGE, True, "Label"),
    ],
    "Line": [("function_id", 1, UINT64, False, None), ("line", 2, INT64, False, None)],
    "Location": [("id", 1, UINT64, False, None), ("line", 4, MESSAGE, True, "Line")],
    "Function": [
        ("id", 1, UINT64, False, None),
        ("name", 2, INT64, False, None),
        ("filename", 4, INT64, False, None),
    ],
    "Profile": [
        ("sample_type", 1, MESSAGE, True, "ValueType"),
        ("sample", 2, MESSAGE, True, "Sample"),
        ("location", 4, MESSAGE, True, "Location"),
        ("function", 5, MESSAGE, True, "Function"),
        ("string_table", 6, STRING, True, None),
        ("time_nanos", 9, INT64, False, None),
        ("duration_nanos", 10, INT64, False, None),
        ("period_type", 11, MESSAGE, False, "ValueType"),
        ("period", 12, INT64, False, None),
        ("comment", 13, INT64, True, None),
        ("default_sample_type", 14, INT64, False, None),
    ],
}


def profile_class():
    file = descriptor_pb2.FileDescriptorProto(name="profile.proto", package="p", syntax="proto3")
    for message, fields in FIELDS.items():
        kind = file.message_type.add(name=message)
        for name, number, type_, repeated, of in fields:
            field = kind.field.add(name=name, number=number, type=type_, label=3 if repeated else 1)
            if of:
                field.type_name = f".p.{of}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("p.Profile"))


def main():
    if len(sys.argv) != 2:
        print("usage: python pprof.py FILE", file=sys.stderr)
        sys.exit(2)
    profile = profile_class()()
    with gzip.open(sys.argv[1]) as file:
        profile.ParseFromString(file.read())
    text = profile.string_table
    functions = {function.id: function for function in profile.function}
    locations = {location.id: location for location in profile.location}

    def frames(location):
        return [[text[functions[line.function_id].name], line.line] for line in locations[location].line]

    samples = [
        {
            "place": [text[label.str] for label in sample.label if text[label.key] == "place"],
            "value": list(sample.value),
            # One list per location: its inline chain, innermost first.
            "stack": [frames(location) for location in sample.location_id],
        }
        for sample in profile.sample
    ]
    kinds = [[text[kind.type], text[kind.unit]] for kind in profile.sample_type]
    print(json.dumps({"first": text[0], "kinds": kinds, "samples": samples, "duration": profile.duration_nanos}))


main()
