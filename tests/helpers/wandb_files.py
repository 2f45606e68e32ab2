"""Reads what Weights & Biases writes offline, without its service."""

import json
import os
import struct

from wandb.proto import wandb_internal_pb2

UNREACHABLE = "http://127.0.0.1:9"  # nothing listens there


def read_records(folder):
    """Records of the only offline run below a folder: 32 KiB blocks of pieces of checksum, length, kind,
    data."""
    (path,) = folder.glob("**/run-*.wandb")
    data, position, record = path.read_bytes(), 7, b""
    while position < len(data):
        left = 32_768 - position % 32_768
        if left < 7:
            position += left
            continue
        _, length, kind = struct.unpack("<IHB", data[position : position + 7])
        record += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # a whole record, or the last piece of one
            yield wandb_internal_pb2.Record.FromString(record)
            record = b""


def read_run(folder):
    """The record that starts the run."""
    (run,) = (r.run for r in read_records(folder) if r.WhichOneof("record_type") == "run")
    return run


def read_history(folder):
    """The logged rows."""
    for record in read_records(folder):
        if record.WhichOneof("record_type") == "history":
            items = [(item.key or "/".join(item.nested_key), item.value_json) for item in record.history.item]
            yield {key: json.loads(value) for key, value in items}


def logged_steps(folder):
    return [row["_step"] for row in read_history(folder)]


def offline(tmp_path):
    """An environment without the user's key and settings, and without access to the real service."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB", "NETRC"))}
    return env | {"WANDB_MODE": "offline", "WANDB_BASE_URL": UNREACHABLE, "HOME": str(tmp_path)}
