"""A worker that keeps its process when the membership changes, without the SDK: messages of common/worker_link.h as
JSON datagrams on the inherited descriptor. What happens to it is in the file trace.<pid> of the folder $D, a JSON object a line.

It ends well as soon as there is a file $D/end, and reports progress while it is in a round. FAULT_<local rank> says what is wrong with the first worker of a place,
and LATER_FAULT_<local rank> with those that come after it:
    plain        never says Ready
    hang         never says Ready, and does nothing else either
    deaf         answers no Fence and no Change
    garbage      sends something else as soon as there is a file $D/spoil
    flood        sends no end of messages then
    closed       closes its link then
    parts        closes its link then, and ends with 7 a moment later
    hold         is ready only when there is a file $D/ready
    old          speaks another version of the link
    die          ends with 7 before it is ready
    returns      ends with 0 when it is fenced, as one whose work is done
"""

import json
import os
import select
import signal
import socket
import sys
import time

FOLDER = os.environ["D"]
LOCAL_RANK = os.environ["LOCAL_RANK"]
LOOK = 0.01  # Seconds.


def exists(name):
    return os.path.exists(os.path.join(FOLDER, name))


class Worker:
    def __init__(self):
        self.trace_file = open(os.path.join(FOLDER, f"trace.{os.getpid()}"), "a", encoding="utf-8", buffering=1)
        place = f"began.{os.environ['GROUP_RANK']}.{LOCAL_RANK}"
        first = not exists(place)
        open(os.path.join(FOLDER, place), "w", encoding="utf-8").close()
        self.fault = os.environ.get(("" if first else "LATER_") + f"FAULT_{LOCAL_RANK}", "")
        self.link = None
        self.round = -1
        self.step = 0
        self.computes = False
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT",
                 "TORCHELASTIC_ERROR_FILE", "DDPRUN_TEST_JOB")
        self.trace("born", **{name: os.environ.get(name, "") for name in names})

    def trace(self, event, **more):
        self.trace_file.write(json.dumps({"event": event, **more}) + "\n")

    def say(self, **message):
        self.link.send(json.dumps(message).encode())

    def begin(self):
        if self.fault == "die":
            sys.exit(7)
        while self.fault == "hang":
            signal.pause()
        while self.fault == "hold" and not exists("ready"):
            self.end_well()
            time.sleep(LOOK)
        if self.fault == "plain":
            return
        self.link = socket.socket(fileno=int(os.environ["DDPRUN_WORKER_LINK"]))
        self.say(type="ready", version=99 if self.fault == "old" else 1)
        self.trace("ready")

    @staticmethod
    def end_well():
        if exists("end"):
            sys.exit(0)

    def spoil(self):
        if self.fault not in ("garbage", "flood", "closed", "parts") or not exists("spoil"):
            return
        fault, self.fault = self.fault, ""
        try:
            while fault == "flood":
                self.say(type="left", round=0, step=0)
            if fault == "garbage":
                self.link.send(b"no message")
        except OSError:
            pass
        self.trace("spoilt")
        if fault in ("closed", "parts"):
            self.link.close()
            self.link = None
        if fault == "parts":
            time.sleep(LOOK)
            sys.exit(7)

    def run(self):
        self.begin()
        while True:
            self.end_well()
            self.spoil()
            if self.computes and "DDPRUN_PROGRESS" in os.environ:
                os.utime(os.environ["DDPRUN_PROGRESS"])
            if self.link is None:
                time.sleep(LOOK)
            elif select.select([self.link], [], [], LOOK)[0]:
                self.take(self.receive())
            self.step += 1
            if self.step == 300:
                self.trace("warm")

    def receive(self):
        """A message; an empty one where the agent has closed the link, with or without having read what it was sent."""
        try:
            return self.link.recv(8192)
        except ConnectionResetError:
            return b""

    def take(self, datagram):
        if not datagram:
            self.trace("closed")
            self.link = None
            return
        message = json.loads(datagram)
        if "rank" in message:
            print(f"rank {message['rank']} of {message['world_size']}", flush=True)
        self.trace(message.pop("type"), step=self.step, **message)
        if "rank" in message:
            if self.fault == "returns" or (self.round >= 0 and message["round"] != self.round):
                self.say(type="resumed", round=message["round"], step=self.step, repeated=1, lost_us=1234)
            self.round = message["round"]
            self.computes = True
        elif self.fault == "returns":
            sys.exit(0)
        elif self.fault != "deaf" and message.get("round") == self.round:
            self.say(type="left", round=self.round, step=self.step)
            self.computes = False


signal.signal(signal.SIGINT, signal.SIG_DFL)
Worker().run()
