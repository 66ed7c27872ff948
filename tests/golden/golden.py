"""Writes golden files; make.py describes their format."""
import struct

import torch


def write(path, arrays):
    kinds = {torch.float64: ("f64", "d"), torch.float32: ("f32", "f"), torch.int32: ("i32", "i")}
    with open(path, "wb") as file:
        file.write(b"remat golden 1\n")
        for name, value in arrays.items():
            dims = " ".join(str(d) for d in value.shape)
            file.write(f"{name} {kinds[value.dtype][0]} {value.dim()} {dims}\n".encode())
        file.write(b"\n")
        for value in arrays.values():
            flat = value.reshape(-1).tolist()
            file.write(struct.pack(f"<{len(flat)}{kinds[value.dtype][1]}", *flat))
