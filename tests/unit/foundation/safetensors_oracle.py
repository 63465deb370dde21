"""Reads safetensors files with the safetensors package.

usage: safetensors_oracle.py BATCH VERDICTS
BATCH is a sequence of u32 length + file; VERDICTS gets one line per file: "-" if the package refuses it, else the
SHA-256 of its tensors by name: name, dtype, shape and bytes.
"""
import hashlib
import struct
import sys

import safetensors


def verdict(data: bytes) -> str:
    try:
        tensors = safetensors.deserialize(data)
    except safetensors.SafetensorError:
        return "-"
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors, key=lambda item: item[0].encode()):
        shape = ",".join(str(size) for size in tensor["shape"])
        for text in (name, tensor["dtype"], shape):
            digest.update(text.encode() + b"\0")
        digest.update(bytes(tensor["data"]))
    return digest.hexdigest()


def main() -> int:
    batch = memoryview(open(sys.argv[1], "rb").read())
    with open(sys.argv[2], "w", encoding="ascii") as out:
        at = 0
        while at < len(batch):
            (size,) = struct.unpack_from("<I", batch, at)
            out.write(verdict(bytes(batch[at + 4 : at + 4 + size])) + "\n")
            at += 4 + size
    return 0


if __name__ == "__main__":
    sys.exit(main())
