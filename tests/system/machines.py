"""Several "machines" on one switch: network namespaces with names that resolve, for tests of ssh and of Slurm.

Needs root. Each machine has a hosts file of its own (`ip netns exec` puts /etc/netns/NAME/hosts over /etc/hosts), and all of
it is gone at the end.
"""

import os
import shutil
import subprocess

import ddprun_case


class Machines:
    """`count` machines, named m0, m1, ... among themselves; `names` are those of their namespaces."""

    def __init__(self, count, subnet="10.78.0"):
        stem = f"ddpm{os.getpid()}"
        self.hosts = [f"m{i}" for i in range(count)]
        self.names = [f"{stem}n{i}" for i in range(count)]
        self.addresses = [f"{subnet}.{i + 1}" for i in range(count)]
        self._switch = stem + "s"

    missing = staticmethod(ddprun_case.Network.missing)

    def __enter__(self):
        try:
            self._build()
        except Exception:
            self.__exit__()
            raise
        return self

    def _build(self):
        known = "127.0.0.1 localhost\n" + "".join(f"{a} {h}\n" for a, h in zip(self.addresses, self.hosts))
        self._ip("netns", "add", self._switch)
        self._ip("-n", self._switch, "link", "add", "switch", "type", "bridge")
        self._ip("-n", self._switch, "link", "set", "switch", "up")
        for i, name in enumerate(self.names):
            os.makedirs(f"/etc/netns/{name}")
            with open(f"/etc/netns/{name}/hosts", "w", encoding="ascii") as f:
                f.write(known)
            self._ip("netns", "add", name)
            self._ip("-n", name, "link", "set", "lo", "up")
            self._ip("link", "add", "wire", "netns", name, "type", "veth", "peer", "name", f"port{i}",
                     "netns", self._switch)
            self._ip("-n", self._switch, "link", "set", f"port{i}", "master", "switch", "up")
            self._ip("-n", name, "addr", "add", self.addresses[i] + "/24", "dev", "wire")
            self._ip("-n", name, "link", "set", "wire", "up")

    def cut(self, index):
        """Pulls the cable of one machine."""
        self._ip("-n", self._switch, "link", "set", f"port{index}", "down")

    def __exit__(self, *_):
        for name in [*self.names, self._switch]:
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL, timeout=20, check=False)
            shutil.rmtree(f"/etc/netns/{name}", ignore_errors=True)

    @staticmethod
    def _ip(*argv):
        subprocess.run(["ip", *argv], check=True, timeout=20)
