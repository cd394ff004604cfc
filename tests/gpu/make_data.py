#!/usr/bin/env python3
"""A made-up data set in the files of Fashion-MNIST, for machines that have none: tests/gpu/make_data.py FOLDER.

Noise, in which the rows of the class are brighter: a few steps of training tell the classes apart.
"""
import gzip
import os
import random
import sys

SIDE = 28


def image(rng, label):
    pixels = bytearray(value // 2 for value in rng.randbytes(SIDE * SIDE))
    for at in range((2 * label + 3) * SIDE, (2 * label + 5) * SIDE):
        pixels[at] += 128
    return bytes(pixels)


def write(path, magic, extents, payload):
    header = bytes((0, 0, 8, magic)) + b"".join(n.to_bytes(4, "big") for n in extents)
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(header + payload)


def main():
    folder = sys.argv[1]
    os.makedirs(folder, exist_ok=True)
    rng = random.Random(1)
    for stem, count in (("train", 20_000), ("t10k", 2_000)):
        labels = bytes(rng.randrange(10) for _ in range(count))
        images = b"".join(image(rng, label) for label in labels)
        write(f"{folder}/{stem}-images-idx3-ubyte.gz", 3, (count, SIDE, SIDE), images)
        write(f"{folder}/{stem}-labels-idx1-ubyte.gz", 1, (count,), labels)


if __name__ == "__main__":
    main()
