"""The event file that the C++ trainer writes for TensorBoard: by a reader that shares no code with the writer, and by
TensorBoard's own, if a Python of DDPRUN_TEST_TORCH_PYTHONS has it."""

import glob
import json
import os
import struct
import subprocess
import sys

sys.path[:0] = [os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", folder) for folder in ("system",)]
import ddprun_case  # noqa: E402
from ddprun_case import DdprunCase  # noqa: E402
import train_test  # noqa: E402


def crc32c(data):
    crc = 0xffffffff
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82f63b78 if crc & 1 else 0)
    return crc ^ 0xffffffff


def fields(message):
    """(number, value) of each field of a protobuf message; what has a length as bytes."""
    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
            if byte < 128:
                return value

    at = 0
    while at < len(message):
        key = varint()
        number, wire = key >> 3, key & 7
        if wire == 0:
            yield number, varint()
            continue
        size = {1: 8, 5: 4}[wire] if wire != 2 else varint()
        value, at = message[at:at + size], at + size
        assert len(value) == size
        yield number, struct.unpack("<d" if wire == 1 else "<f", value)[0] if wire != 2 else value


def events(path):
    """(step, {tag: value}) of each event of an event file; of others (step, field's number, value). Shares no code with
    what wrote it."""
    with open(path, "rb") as f:
        data = f.read()
    while data:
        (size,) = struct.unpack("<Q", data[:8])
        for part, crc in ((data[:8], data[8:12]), (data[12:12 + size], data[12 + size:16 + size])):
            plain = crc32c(part)
            assert struct.unpack("<I", crc)[0] == ((plain >> 15 | plain << 17) + 0xa282ead8) & 0xffffffff, path
        event, data = dict(fields(data[12:12 + size])), data[16 + size:]
        assert event.pop(1) > 1.6e9  # Seconds since 1970.
        step = event.pop(2)
        ((number, value),) = event.items()
        if number != 5:
            yield step, number, value
            continue
        scalars = [dict(fields(item)) for _, item in fields(value)]
        yield step, {scalar[1].decode(): scalar[2] for scalar in scalars}


TENSORBOARDS_READER = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
read = EventAccumulator(sys.argv[1])
read.Reload()
print(json.dumps({tag: [[s.step, s.value] for s in read.Scalars(tag)] for tag in read.Tags()["scalars"]}))
"""


class TensorBoard(DdprunCase):
    def train(self, *argv):
        return self.run_ddprun("--nproc-per-node", "2", "train", "--max-steps", "5", "--tensorboard", self.path("runs/a"),
                               "--warmup", "2", *argv, patience=5 * ddprun_case.PATIENCE)

    def files(self):
        return sorted(glob.glob(self.path("runs/a/events.out.tfevents.*")))

    def test_an_independent_reader(self):
        self.train("--epochs", "2", "--metrics", self.path("metrics"))
        (path,) = self.files()
        first, *others = events(path)
        self.assertEqual(first, (0, 3, b"brain.Event:2"))
        steps = [(step, values) for step, values in others if "train/loss" in values]
        self.assertEqual([step for step, _ in steps], list(range(10)))
        self.assertEqual(steps[0][1]["train/learning_rate"], struct.unpack("f", struct.pack("f", 0.01 * (1 / 3)))[0])
        self.assertTrue(all(0 < values["train/loss"] < 10 for _, values in steps), steps)
        epochs = [(step, values) for step, values in others if "train/loss" not in values]
        self.assertEqual([step for step, _ in epochs], [4, 9])
        with open(self.path("metrics"), encoding="ascii") as f:
            for (_, values), line in zip(epochs, map(json.loads, f)):
                for name in ("epoch/train_loss", "epoch/test_accuracy", "speed/step_ms"):
                    self.assertAlmostEqual(values[name] / line[name.split("/")[1]], 1, places=3)

    def resumed(self):
        for epochs in "12":
            self.train("--epochs", epochs, "--checkpoint", self.path("checkpoint"))
        return [list(events(path)) for path in self.files()]

    def test_a_training_that_resumes_begins_a_file_with_its_step(self):
        first, second = self.resumed()
        self.assertEqual(second[1], (5, 7, b"\x08\x01"))
        self.assertEqual([event[0] for event in first[1:] + second[2:]], [0, 1, 2, 3, 4, 4, 5, 6, 7, 8, 9, 9])

    def test_tensorboards_own_reader(self):
        pythons = [python for python in os.environ.get("DDPRUN_TEST_TORCH_PYTHONS", "").split(":") if python and
                   subprocess.run([python, "-c", "import tensorboard"], capture_output=True, check=False).returncode == 0]
        if not pythons:
            self.skipTest("no Python of DDPRUN_TEST_TORCH_PYTHONS has tensorboard")
        first, second = self.resumed()
        curves = {}
        for step, values in first[1:] + second[2:]:
            for tag, value in values.items():
                curves.setdefault(tag, []).append([step, value])
        for python in pythons:
            said = subprocess.run([python, "-c", TENSORBOARDS_READER, self.path("runs/a")], check=True,
                                  stdout=subprocess.PIPE, timeout=5 * ddprun_case.PATIENCE).stdout
            self.assertEqual(json.loads(said), curves)


if __name__ == "__main__":
    train_test.main()
