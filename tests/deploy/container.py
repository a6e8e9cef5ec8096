"""The image built and run as people do, by Podman with a store of its own in a folder: as root, also within a container."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.processes import until

ROOT = Path(__file__).parents[2]

TAG = "localhost/llm-slo-prober:built"
USER = 65532
LIMIT_MB = 128
# As docs/kubernetes.md says to run it.
HARDENED = (
    "--read-only",
    "--cap-drop=ALL",
    "--security-opt=no-new-privileges",
    f"--memory={LIMIT_MB}m",
    f"--memory-swap={LIMIT_MB}m",
)
# Podman's own would be above what may be asked for within a container.
LIMITS = ("--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024")
PORT = 9742
ASK = "import sys, urllib.request as u; sys.stdout.write(u.urlopen(sys.argv[1], timeout=10).read().decode())"


def missing() -> str:
    """Why the image cannot be built and run here; empty if it can. tools/image.sh says if there is no base for it."""
    if os.geteuid() != 0:
        return "not root"
    absent = [program for program in ("podman", "runc", "nsenter") if shutil.which(program) is None]
    return f"not installed: {', '.join(absent)}" if absent else ""


class Podman:
    """Podman whose images and containers are all below `folder`; without systemd, cgroup files written by itself."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        storage, engine = self.folder / "storage.conf", self.folder / "containers.conf"
        where = f'graphroot = "{self.folder}/store"\nrunroot = "{self.folder}/run"\n'
        engine.write_text('[engine]\ncgroup_manager = "cgroupfs"\nruntime = "runc"\nevents_logger = "file"\n')
        self.environment = {**os.environ, "CONTAINERS_STORAGE_CONF": str(storage), "CONTAINERS_CONF": str(engine)}
        for driver in ("overlay", "vfs"):  # the latter copies every layer, and works within any container too
            storage.write_text(f'[storage]\ndriver = "{driver}"\n{where}')
            if self.try_("info").returncode == 0:
                break

    def try_(self, *words: object) -> "subprocess.CompletedProcess[str]":
        """Run `podman words…`, whatever comes of it."""
        command = ["podman", "--log-level=fatal", *map(str, words)]
        return subprocess.run(
            command,
            cwd=self.folder,  # its monitor leaves a note there of a process that was killed
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def __call__(self, *words: object) -> str:
        """What `podman words…` prints. Raises RuntimeError with its complaint."""
        done = self.try_(*words)
        if done.returncode:
            raise RuntimeError(f"podman {' '.join(map(str, words))}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout.strip()

    def build(self, *words: str) -> str:
        """tools/image.sh, and what it printed. Raises RuntimeError with its complaint."""
        command: list[str | Path] = [ROOT / "tools/image.sh", *words, TAG]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"tools/image.sh: {done.stderr.strip()[-2000:]}")
        return done.stdout

    def built(self) -> str:
        """The image of this commit and these files, built only if the last one was of others. Returns which it is."""
        inputs, stamp = _inputs(), self.folder / "built-of"
        if stamp.exists() and stamp.read_text() == inputs and self.try_("image", "exists", TAG).returncode == 0:
            return f"kept {TAG}, of the same files"
        said = self.build().splitlines()[-1]
        stamp.write_text(inputs)
        return said

    def inspect(self) -> dict[str, Any]:
        """What is known of the image."""
        (said,) = json.loads(self("image", "inspect", TAG))
        return dict(said)

    def files(self) -> Path:
        """The folder that the image's files are in, to be read only."""
        return Path(self("image", "mount", TAG))

    def compressed_bytes(self) -> int:
        """All that is fetched of it: layers, gzipped, and the documents about them."""
        copy = self.folder / "oci"
        self("push", "--quiet", TAG, f"oci:{copy}:built")
        try:
            return sum(blob.stat().st_size for blob in (copy / "blobs/sha256").iterdir())
        finally:
            shutil.rmtree(copy)

    def unpacked_bytes(self) -> int:
        """Of disk, as du counts."""
        said = subprocess.run(["du", "-s", "--block-size=1", self.files()], capture_output=True, text=True, check=True)
        return int(said.stdout.split()[0])

    @contextmanager
    def run(self, *words: object, options: tuple[str, ...] = HARDENED, network: str = "none") -> Iterator["Container"]:
        """A container of the image, created and not started; `words` are the prober's. Removed with the context."""
        name = self("create", "--pull=never", f"--network={network}", *LIMITS, *options, TAG, *words)
        try:
            yield Container(self, name)
        finally:
            self("rm", "--force", "--time=0", name)

    def unmount(self) -> None:
        """Unmount the files of images, so that the folder can be removed."""
        self("image", "umount", "--all", "--force")

    def clear(self) -> None:
        """Remove every image, and the store."""
        self.unmount()
        self("rmi", "--all", "--force")
        with suppress(FileNotFoundError):
            shutil.rmtree(self.folder / "store")


def _inputs() -> str:
    """A digest of all that the image is built from: the commit, which it names, the files that .dockerignore admits, and the recipe."""
    admitted = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    listing = (
        "git",
        "ls-files",
        "--cached",
        "--others",
        "--exclude-standard",
        "--",
        *admitted,
        ".dockerignore",
        "Dockerfile",
    )
    names = _output(*listing, "tools/image.sh").splitlines()
    digest = hashlib.sha256(_output("git", "rev-parse", "HEAD").encode())
    for path in sorted(ROOT / name for name in names):
        digest.update(f"{path}\0".encode() + (path.read_bytes() if path.exists() else b""))
    return digest.hexdigest()


def _output(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


@dataclass(frozen=True, slots=True)
class Container:
    """One container. Its loopback is its own, or that of the one whose network it joined."""

    podman: Podman
    name: str

    def start(self) -> int:
        """Start it. Returns the monotonic clock from just before, in ns."""
        at_ns = time.monotonic_ns()
        self.podman("start", self.name)
        return at_ns

    @property
    def pid(self) -> int:
        """Of its first process, as seen from here. Raises RuntimeError with its log if it does not run."""
        found = int(self.podman("inspect", "--format={{.State.Pid}}", self.name))
        if not found:
            raise RuntimeError(f"the container does not run: {self.log().strip()[-2000:]}")
        return found

    def inside(self, *command: object) -> list[str]:
        """`command` of this machine as it is to be run in the container's network."""
        return ["nsenter", f"--target={self.pid}", "--net", *map(str, command)]

    def get(self, path: str, port: int = PORT) -> str:
        """A page. Raises OSError while there is none."""
        command = self.inside(sys.executable, "-c", ASK, f"http://127.0.0.1:{port}{path}")
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise OSError(done.stderr.strip().rpartition("\n")[2])
        return done.stdout

    def log(self) -> str:
        """Both of its streams."""
        said = self.podman.try_("logs", self.name)
        return said.stdout + said.stderr

    def end(self, seconds: float = 60) -> tuple[int, float]:
        """SIGTERM to its first process: the exit code, and after how many seconds it was gone."""
        pid, at = self.pid, time.monotonic()
        self.podman("kill", "--signal=TERM", self.name)
        while Path(f"/proc/{pid}").exists() and time.monotonic() < at + seconds:
            time.sleep(0.01)
        took = time.monotonic() - at
        return int(self.podman("wait", self.name)), took

    def memory(self) -> "Memory":
        """Of its control group, and of its first process."""
        pid = self.pid
        groups = [line.split(":", 2)[1:] for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()]
        own = dict(groups)
        if "memory" in own:
            folder = Path("/sys/fs/cgroup/memory" + own["memory"])
            peak, control = _number(folder / "memory.max_usage_in_bytes"), folder / "memory.oom_control"
        else:
            folder = Path("/sys/fs/cgroup" + own[""])
            peak, control = _number(folder / "memory.peak"), folder / "memory.events"
        kills = dict(line.split() for line in control.read_text().splitlines())["oom_kill"]
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        return Memory(peak / 2**20, int(status["VmHWM"].split()[0]) / 2**10, int(kills))


@dataclass(frozen=True, slots=True)
class Memory:
    """peak_mib: most that was charged to the container, cached files too, at most its limit; resident_mib: most its first
    process had; kills: processes killed for want of memory
    """

    peak_mib: float
    resident_mib: float
    kills: int


def _number(path: Path) -> int:
    return int(path.read_text())


@dataclass(frozen=True, slots=True)
class Pair:
    """A mock engine and a prober, two containers of the image with one loopback. truth: what the mock received and when."""

    engine: Container
    prober: Container
    truth: Path
    started_ns: int

    def first_request_s(self) -> float:
        """From the start of the prober's container to the first request that the engine received."""
        lines = until(lambda: self.truth.read_text().splitlines()[:1], "a request of the prober", 30)
        return float(json.loads(lines[0])["received_ns"] - self.started_ns) / 1e9

    def value(self, name: str) -> float:
        """The sum of this series on the prober's page."""
        samples = (line.rpartition(" ") for line in self.prober.get("/metrics").splitlines())
        return sum(float(value) for series, _, value in samples if series.partition("{")[0] == name)


@contextmanager
def pair(podman: Podman, folder: Path, config: str, *flags: str, engine: tuple[str, ...] = ()) -> Iterator[Pair]:
    """Both, started: the engine at 127.0.0.1:8000, then the prober with `config` and what it stores in `folder`."""
    for name in ("truth", "state"):
        (folder / name).mkdir(parents=True)
        os.chown(folder / name, USER, USER)
    truth = folder / "truth/truth.jsonl"
    (folder / "prober.yaml").write_text(config)
    ours = (*HARDENED, "--no-healthcheck", f"--volume={folder}/truth:/truth")
    theirs = (
        *HARDENED,
        f"--volume={folder}/prober.yaml:/etc/prober/prober.yaml:ro",
        f"--volume={folder}/state:/var/lib/prober",
    )
    with podman.run("mock", "--port=8000", "--truth=/truth/truth.jsonl", *engine, options=ours) as first:
        first.start()
        until(lambda: first.get("/version", 8000), "the engine to answer", 20)
        run = ("run", "--config.file=/etc/prober/prober.yaml", "--storage.path=/var/lib/prober", *flags)
        with podman.run(*run, options=theirs, network=f"container:{first.name}") as second:
            yield Pair(first, second, truth, second.start())
