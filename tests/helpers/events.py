"""Reads TensorBoard's event files without the code under test."""

import struct

from tensorboardX.proto import event_pb2


def all_events(path):
    """Records of length, checksum, data, checksum."""
    data = path.read_bytes()
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        yield event_pb2.Event.FromString(data[12 : 12 + length])
        data = data[16 + length :]


def read_events(folder):
    """Tags, steps and values of the only event file in a folder."""
    (path,) = folder.glob("events.out.tfevents.*")
    return [(v.tag, event.step, v.simple_value) for event in all_events(path) for v in event.summary.value]
