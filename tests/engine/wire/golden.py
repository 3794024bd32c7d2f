"""Frames recorded from vLLM's own encoder and from real engines; see ``tests/golden``."""

import json
from pathlib import Path
from typing import Any

import attrs
import msgpack

FOLDER = Path(__file__).parents[2] / "golden"


@attrs.frozen
class Entry:
    """One message without its routing identity and type byte."""

    name: str
    series: str
    flow: str
    frames: list[bytes]
    type_frame: bytes | None
    decoded: Any

    def __str__(self) -> str:
        return f"{self.series}-{self.name}"

    def raw(self) -> Any:
        """The payload as plain MessagePack."""
        return raw(self.frames[0])


def raw(frame: bytes) -> Any:
    return msgpack.unpackb(frame, strict_map_key=False)


def _load() -> list[Entry]:
    manifest = json.loads((FOLDER / "manifest.json").read_text())
    return [
        Entry(
            name=entry["name"],
            series=entry["files"][0]["file"].split("/")[0],
            flow=entry["flow"],
            frames=[(FOLDER / file["file"]).read_bytes() for file in entry["files"]],
            type_frame=bytes.fromhex(entry["type_frame_hex"])
            if "type_frame_hex" in entry
            else None,
            decoded=entry.get("decoded"),
        )
        for entry in manifest["entries"]
    ]


ENTRIES = _load()
REQUESTS = [entry for entry in ENTRIES if entry.type_frame is not None]
ADDS = [entry for entry in REQUESTS if entry.type_frame == b"\x00"]
OUTPUTS = [entry for entry in ENTRIES if "PUSH/PULL" in entry.flow]
HANDSHAKES = [entry for entry in ENTRIES if "handshake" in entry.flow]
REGISTRATIONS = [entry for entry in ENTRIES if "first message" in entry.flow]
BATCHES = [entry for entry in OUTPUTS if entry.name != "engine_core_dead"]


def find(name: str, series: str = "0.33") -> Entry:
    [entry] = [entry for entry in ENTRIES if (entry.name, entry.series) == (name, series)]
    return entry
