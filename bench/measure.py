"""What a process costs, from /proc, and on which cores it may run."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.servers.warden import descendants


def cpu_seconds(pid: int) -> float:
    """Of all threads of a process and of those below it, as the scheduler counts it.

    Of those below it that are gone the process itself knows, to a hundredth of a second.
    """
    used = 0
    for process in (pid, *descendants(pid)):
        with suppress(OSError):
            after_name = Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2].split()
            used += sum(map(int, after_name[13:15])) * 10**9 // os.sysconf("SC_CLK_TCK")
        for thread in _threads(process):
            with suppress(OSError):
                path = Path(f"/proc/{process}/task/{thread}/schedstat")
                used += int(path.read_text().split()[0])
    return used / 1e9


def peak_megabytes(pid: int) -> float:
    """The most memory the process has ever held."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0


@dataclass(frozen=True)
class Share:
    """Some cores of this machine; empty: as it comes."""

    cores: tuple[int, ...] = ()

    def command(self, command: Sequence[str | int]) -> list[str]:
        """``command``, held to these cores."""
        words = [str(word) for word in command]
        return ["taskset", "-c", str(self), *words] if self.cores else words

    def hold(self, pid: int) -> None:
        """Hold a running process, its threads and children to these cores."""
        for process in (pid, *descendants(pid)) if self.cores else ():
            for thread in _threads(process):
                with suppress(OSError):
                    os.sched_setaffinity(thread, self.cores)

    def __str__(self) -> str:
        return ",".join(map(str, self.cores)) or "any"


def _threads(pid: int) -> Iterable[int]:
    with suppress(OSError):
        return [int(entry.name) for entry in Path(f"/proc/{pid}/task").iterdir()]
    return ()


@dataclass(frozen=True)
class Cores:
    """Who runs where: the server alone on one core, what it talks to on the others."""

    server: Share = Share()
    generator: Share = Share()
    store: Share = Share()

    @property
    def all(self) -> Share:
        """For what is measured without HTTP: whoever has work may have a core."""
        return Share(tuple(sorted(os.sched_getaffinity(0)))) if self.server.cores else Share()

    @classmethod
    def divided(cls) -> Cores:
        """The generator and the store share a core where there are but two."""
        there = sorted(os.sched_getaffinity(0))
        if len(there) < 2 or not _has_taskset():
            return cls()
        first, second, *others = there
        return cls(Share((first,)), Share((second,)), Share(tuple(others) or (second,)))

    def __str__(self) -> str:
        return f"server on core {self.server}, generator on {self.generator}, store on {self.store}"


def _has_taskset() -> bool:
    return any(Path(folder, "taskset").exists() for folder in os.get_exec_path())
