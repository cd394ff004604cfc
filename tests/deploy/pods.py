"""Pods for tests: containers that runc makes of the manifests of deploy/kubernetes as kustomize builds them.

Each pod is a machine of its own (machines.py) with its own address. Its root is a folder with this machine's /usr. Its user,
groups, capabilities, seccomp profile, read-only root, volumes, command and environment are those of the manifest. The
names of the headless Service are in a hosts file that is written anew when a pod comes back with another address.
"""

import json
import os
import re
import shutil
import subprocess
import tempfile

import ddprun_case
import kustomize
from ddprun_case import BIN, MARKER, PACKAGE
from machines import Machines

TOKEN = "a token of the tests"
HERE = os.path.dirname(os.path.abspath(__file__))
PYTHON = "/usr/bin/python3"
NAMESPACES = ("mount", "pid", "ipc", "uts")
# The default of containers, for pods with RuntimeDefault (package golang-github-containers-common); it is of buildah's company.
SECCOMP = "/usr/share/containers/seccomp.json"
OF_ETC = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "nsswitch.conf", "alternatives")


def missing():
    if os.geteuid() != 0:
        return "pods need root"
    if not shutil.which("runc"):
        return "there is no runc"
    return Machines.missing() or refused()


def refused():
    """Why this machine lets runc make not even the plainest container."""
    config = {"ociVersion": "1.0.2", "root": {"path": "root", "readonly": True},
              "process": {"args": ["/usr/bin/true"], "cwd": "/", "user": {"uid": 0, "gid": 0}},
              "mounts": [{"destination": "/proc", "source": "proc", "type": "proc"},
                         {"destination": "/usr", "source": "/usr", "type": "bind", "options": ["rbind", "ro"]}],
              "linux": {"namespaces": [{"type": "mount"}, {"type": "pid"}]}}
    with tempfile.TemporaryDirectory() as bundle:
        for name in ("usr", "proc"):
            os.makedirs(f"{bundle}/root/{name}")
        for name in ("lib", "lib64"):
            os.symlink("usr/" + name, f"{bundle}/root/{name}")
        with open(bundle + "/config.json", "w", encoding="ascii") as f:
            json.dump(config, f)
        done = subprocess.run(["runc", "run", "--bundle", bundle, f"pod{os.getpid()}-probe"], capture_output=True, text=True,
                              timeout=60, check=False)
    return f"this machine lets runc make no container: {done.stderr.strip()[-300:]}" if done.returncode else None


def seccomp():
    """The default profile as runc reads it, for a process of this machine's processor without capabilities."""
    with open(SECCOMP, encoding="utf-8") as f:
        profile = json.load(f)
    machine = {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]
    rules = []
    for rule in profile["syscalls"]:
        includes, excludes = rule.get("includes") or {}, rule.get("excludes") or {}
        if "caps" in includes or machine not in includes.get("arches", [machine]) or machine in excludes.get("arches", []):
            continue
        rules.append({key: rule[key] for key in ("names", "action", "errnoRet", "args") if rule.get(key) is not None})
    (native,) = [entry for entry in profile["archMap"] if entry["architecture"].endswith({"amd64": "X86_64", "arm64": "AARCH64"}[machine])]
    return {"defaultAction": profile["defaultAction"], "defaultErrnoRet": profile["defaultErrnoRet"],
            "architectures": [native["architecture"], *native["subArchitectures"]], "syscalls": rules}


class Pods:
    """The pods of a folder's Job; at most `machines` are started in a test, each at an address of its own."""

    def __init__(self, case, folder, machines, nodes=None):
        (self.job,) = [thing for thing in kustomize.build(folder) if thing["kind"] == "Job"]
        if nodes is not None:
            self.resize(nodes)
        self.case = case
        self.machines = Machines(machines, "10.81.0")
        self.started = 0
        self.memory = None  # The limit of a pod, in bytes.
        self.more = {}  # Environment that the manifest lacks.
        self.addresses = {}
        self.names = f"pod{os.getpid()}"
        self.hosts = case.path("hosts")
        self.root = self.make_root()

    def __enter__(self):
        self.machines.__enter__()
        return self

    def __exit__(self, *_):
        for number in range(self.started):
            subprocess.run(["runc", "delete", "--force", f"{self.names}-{number}"], capture_output=True, timeout=60, check=False)
        for job in self.case.jobs:
            job.end()
        self.machines.__exit__()

    def make_root(self):
        """The image: this machine's programs, and the trainer in the working folder."""
        root = self.case.path("root")
        for name in ("usr", "etc", "proc", "dev", "sys", "tmp", "etc/ddprun", "opt/bin", "opt/python", "opt/lib", "train"):
            os.makedirs(f"{root}/{name}")
        for name in ("bin", "sbin", "lib", "lib64"):
            os.symlink(f"usr/{name}", f"{root}/{name}")
        for name in OF_ETC:
            if os.path.exists("/etc/" + name):
                subprocess.run(["cp", "-a", "/etc/" + name, f"{root}/etc/"], check=True, timeout=20)
        with open(f"{root}/etc/hosts", "w", encoding="ascii"):
            pass
        shutil.copy(os.path.join(HERE, "pod_train.py"), f"{root}/train/train.py")
        return root

    def resize(self, nodes):
        """In the three places that the manifest names."""
        self.job["spec"]["completions"] = self.job["spec"]["parallelism"] = nodes
        (container,) = self.job["spec"]["template"]["spec"]["containers"]
        (of_nodes,) = [entry for entry in container["env"] if entry["name"] == "PET_NNODES"]
        of_nodes["value"] = str(nodes)

    @property
    def count(self):
        return self.job["spec"]["completions"]

    def start(self, index, epochs):
        """A pod with this index, at an address that none has had before."""
        number, self.started = self.started, self.started + 1
        self.addresses[index] = self.machines.addresses[number]
        self.write_hosts()
        bundle = self.case.path(f"bundle-{number}")
        os.mkdir(bundle)
        with open(bundle + "/config.in", "w", encoding="utf-8") as f:
            json.dump(self.config(index, number, str(epochs)), f)
        # The pod's processes carry the job's mark, which the job's own environment has.
        script = f'sed "s/@MARK@/${MARKER}/" config.in > config.json && exec runc run --bundle . {self.names}-{number}'
        job = self.case.start_program(["/bin/sh", "-c", script], cwd=bundle)
        job.container = f"{self.names}-{number}"
        return job

    def signal(self, job, name, may_be_gone=False):
        """What the kubelet sends to the pod's first process."""
        subprocess.run(["runc", "kill", job.container, name], check=not may_be_gone, capture_output=True, timeout=60)

    def execute(self, job, *argv):
        """As a probe of the kubelet."""
        return subprocess.run(["runc", "exec", job.container, *argv], capture_output=True, text=True, timeout=60, check=False)

    def write_hosts(self):
        pod = self.job["spec"]["template"]["spec"]
        name = self.job["metadata"]["name"]
        lines = ["127.0.0.1 localhost"]
        lines += [f"{address} {name}-{i}.{pod['subdomain']} {name}-{i}" for i, address in sorted(self.addresses.items())]
        with open(self.hosts, "w", encoding="ascii") as f:  # In place: pods have it mounted.
            f.write("\n".join(lines) + "\n")

    def config(self, index, number, epochs):
        pod = self.job["spec"]["template"]["spec"]
        container, security = pod["containers"][0], pod["securityContext"]
        none = {kind: [] for kind in ("bounding", "effective", "inheritable", "permitted", "ambient")}
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        command = [epochs if word == "3" and before == "--epochs" else word
                   for before, word in zip(["", *container["command"]], container["command"])]
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        return {
            "ociVersion": "1.0.2",
            "hostname": f"{self.job['metadata']['name']}-{index}",
            "root": {"path": self.root, "readonly": container["securityContext"]["readOnlyRootFilesystem"]},
            "process": {
                "args": command, "cwd": "/train", "env": self.environment(container, index),
                "user": {"uid": security["runAsUser"], "gid": security["runAsGroup"], "additionalGids": [security["fsGroup"]]},
                "capabilities": none, "noNewPrivileges": not container["securityContext"]["allowPrivilegeEscalation"]},
            "mounts": self.mounts(pod, container, number),
            "linux": {**self.limits(number), **({"seccomp": seccomp()} if os.path.exists(SECCOMP) else {}),
                      "namespaces": [*({"type": kind} for kind in NAMESPACES),
                                     {"type": "network", "path": f"/var/run/netns/{self.machines.names[number]}"}],
                      "maskedPaths": ["/proc/kcore", "/proc/keys", "/proc/timer_list"],
                      "readonlyPaths": ["/proc/sys", "/proc/sysrq-trigger"]}}

    def limits(self, number):
        """As the kubelet sets them for `resources.limits`."""
        if self.memory is None:
            return {}
        return {"cgroupsPath": f"/{self.names}-{number}", "resources": {"memory": {"limit": self.memory, "swap": self.memory}}}

    def environment(self, container, index):
        """The manifest's, what Kubernetes adds, and what this machine lacks: GPUs."""
        of_manifest = {entry["name"]: entry["value"] for entry in container["env"]}
        assert of_manifest["PET_NPROC_PER_NODE"] == "gpu"
        all_of_it = {"PATH": "/opt/bin:/usr/bin:/bin", "HOME": "/", **of_manifest, "PET_NPROC_PER_NODE": "1",
                     "JOB_COMPLETION_INDEX": str(index), "KUBERNETES_SERVICE_HOST": "10.0.0.1", "PYTHONPATH": "/opt/python",
                     "DDPRUN_LIB": "/opt/lib/libddprun.so", "PYTHON_EXEC": PYTHON, "PYTHONDONTWRITEBYTECODE": "1",
                     MARKER: "@MARK@", **self.more}
        return [f"{name}={value}" for name, value in all_of_it.items()]

    def mounts(self, pod, container, number):
        bind = lambda source, at: {"destination": at, "source": source, "type": "bind", "options": ["rbind", "ro"]}
        found = [{"destination": "/proc", "source": "proc", "type": "proc"},
                 {"destination": "/dev", "source": "tmpfs", "type": "tmpfs", "options": ["nosuid", "mode=755", "size=65536k"]},
                 {"destination": "/dev/pts", "source": "devpts", "type": "devpts", "options": ["newinstance", "ptmxmode=0666"]},
                 bind("/usr", "/usr"), bind(self.hosts, "/etc/hosts"), bind(BIN, "/opt/bin"),
                 bind(PACKAGE["PYTHONPATH"], "/opt/python"), bind(os.path.dirname(os.path.realpath(PACKAGE["DDPRUN_LIB"])), "/opt/lib")]
        if self.memory is not None:
            found += [{"destination": "/sys", "source": "sysfs", "type": "sysfs", "options": ["ro"]},
                      {"destination": "/sys/fs/cgroup", "source": "cgroup", "type": "cgroup", "options": ["ro"]}]
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        if "/dev/shm" not in [mount["mountPath"] for mount in container["volumeMounts"]]:  # The engine's own.
            found.append({"destination": "/dev/shm", "source": "shm", "type": "tmpfs",
                          "options": ["nosuid", "nodev", "noexec", "mode=1777", "size=65536k"]})
        for mount in container["volumeMounts"]:
            found.append(self.volume(volumes[mount["name"]], mount, number, pod["securityContext"]["fsGroup"]))
        return found

    def volume(self, volume, mount, number, group):
        if volume.get("emptyDir", {}).get("medium") == "Memory":
            size = re.fullmatch(r"(\d+)Gi", volume["emptyDir"]["sizeLimit"]).group(1)
            return {"destination": mount["mountPath"], "source": "tmpfs", "type": "tmpfs",
                    "options": ["nosuid", "nodev", "mode=1777", f"size={size}g"]}
        folder = self.case.path(f"volume-{number}-{volume['name']}")
        os.mkdir(folder)
        os.chown(folder, 0, group)
        os.chmod(folder, 0o2777)
        if "secret" in volume:
            with open(folder + "/token", "w", encoding="ascii") as f:
                f.write(TOKEN)
            os.chown(folder + "/token", 0, group)
            os.chmod(folder + "/token", volume["secret"]["defaultMode"])
        return {"destination": mount["mountPath"], "source": folder, "type": "bind",
                "options": ["rbind", "ro" if mount.get("readOnly") else "rw"]}
