# Weights that are not numbers, as a diverged run would send them.
import math
import struct


def write_nan(model, folder):
    """A copy of model/model.safetensors in `folder`, with NaN for every number. All its tensors are float32."""
    data = bytearray((model / "model.safetensors").read_bytes())
    start = 8 + struct.unpack("<Q", data[:8])[0]
    data[start:] = struct.pack("<f", math.nan) * ((len(data) - start) // 4)
    (folder / "model.safetensors").write_bytes(data)
