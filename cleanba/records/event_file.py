"""The records of TensorBoard's event files: length, checksum of the length, data, checksum of the data."""

import struct
from collections.abc import Iterator

from tensorboardX.proto.event_pb2 import Event
from tensorboardX.record_writer import masked_crc32c

EVENTS = "events.out.tfevents."  # prefix of the file names


class DamagedEvents(Exception):
    """The file is not as it was written. The message is one line."""


def event_record(event: Event) -> bytes:
    data = event.SerializeToString()
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked_crc32c(length)) + data + struct.pack("<I", masked_crc32c(data))


def read_events(data: bytes) -> Iterator[Event]:
    """A last record that is incomplete, as in a file still being written, is left out."""
    at = 0
    while at + 12 <= len(data):
        length, checksum = struct.unpack_from("<QI", data, at)
        if checksum != masked_crc32c(data[at : at + 8]):
            raise DamagedEvents(f"no record at byte {at}")
        if at + 16 + length > len(data):
            return
        try:
            yield Event.FromString(data[at + 12 : at + 12 + length])
        except Exception as error:  # protobuf's own
            raise DamagedEvents(f"no event at byte {at}") from error
        at += 16 + length
