"""Runs one server and sees to it that neither it nor its offspring outlive the test session.

Started as a script, as the parent of the server: `warden.py PARENT FOLDER SIGNAL FDS -- COMMAND`.
It prints the server's pid, waits for the server or the test process to end, whichever is first,
kills whatever the server left behind and, when the test process is gone, deletes FOLDER.

Why a process and not PR_SET_PDEATHSIG: the death signal reaches only the direct child (the
workers of uvicorn survive their supervisor), is tied to the *thread* that forked, and is dropped
by the kernel when credentials change, which is exactly what running PostgreSQL as root needs.
Why a pidfd and not a pipe: a pipe stays open in every child that the tests fork. Being a child
subreaper, the warden inherits all orphans of its server, so none can slip away. It runs in a
session of its own, hence survives a SIGKILL to the whole process group of pytest.

Standard library only: it is run isolated from the environment, to start within milliseconds.
"""

import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
FAREWELL_SECONDS = 3.0


def descendants(root: int) -> list[int]:
    """All living processes below one, nearest first (/proc is Linux, as are the tests)."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and (parent := parent_of(entry)):
            children.setdefault(parent, []).append(int(entry.name))
    found = list(children.get(root, []))
    for pid in found:
        found.extend(children.get(pid, []))
    return found


def parent_of(entry: Path) -> int | None:
    try:
        # The second field is the command in parentheses and may itself hold any character.
        state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
    except (OSError, ValueError):
        return None
    return None if state == "Z" else int(parent)


def kill(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def end_descendants() -> None:
    """SIGKILL and reap until there is no child left."""
    while True:
        for pid in descendants(os.getpid()):
            kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def readable(*fds: int, seconds: float | None = None) -> set[int]:
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return {fd for fd, _ in poll.poll(None if seconds is None else seconds * 1000)}


def guard(server: subprocess.Popen[bytes], parent: int, farewell: int, folder: Path) -> int:
    """Wait for the server or the parent; leave nothing of the server behind."""
    server_fd = os.pidfd_open(server.pid)
    orphaned = server_fd not in readable(parent, server_fd)
    if orphaned:
        kill(server.pid, farewell)
        readable(server_fd, seconds=FAREWELL_SECONDS)
        kill(server.pid, signal.SIGKILL)
    code = server.wait()
    end_descendants()
    if orphaned:
        shutil.rmtree(folder, ignore_errors=True)
    return code if code >= 0 else 128 - code


def main(arguments: list[str]) -> int:
    parent, folder, farewell, fds = arguments[:4]
    parent_fd = os.pidfd_open(int(parent))
    if os.getppid() != int(parent):
        return 1  # the parent died before the pidfd was taken, and its number may be another's
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    passed = [int(fd) for fd in fds.split(",") if fd]
    server = subprocess.Popen(arguments[5:], pass_fds=passed, stdin=subprocess.DEVNULL, stdout=2)
    for fd in passed:
        os.close(fd)  # a listening socket must be closed when its server is
    os.write(1, f"{server.pid}\n".encode())
    os.close(1)
    return guard(server, parent_fd, int(farewell), Path(folder))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
