"""What SQLite asks of the operating system, written down: a layer of its own kind, under it.

SQLite reaches files through a table of functions (a VFS), and lets programs put another one in its
place. This one passes everything on and logs what lasts: writes, truncations, syncs, new files and
removed ones. It is put into the library that Python's own ``sqlite3`` uses, in this process: what
is recorded is the store that ships. The memory-mapped index of the log (-shm) is left out: it does
not outlive a power cut.
"""

from __future__ import annotations

import _sqlite3
import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_int, c_int64, c_void_p
from pathlib import Path
from typing import Any, Final

from tests.proof.power.disk import Event, Made, Removed, Resized, Synced, Wrote

_OK: Final = 0

_CLOSE = CFUNCTYPE(c_int, c_void_p)
_WRITE = CFUNCTYPE(c_int, c_void_p, c_void_p, c_int, c_int64)
_TRUNCATE = CFUNCTYPE(c_int, c_void_p, c_int64)
_SYNC = CFUNCTYPE(c_int, c_void_p, c_int)
# Names as pointers: SQLite keeps them, and there is more behind their end.
_OPEN = CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_int, c_void_p)
_DELETE = CFUNCTYPE(c_int, c_void_p, c_void_p, c_int)
_OPEN_FOLDER = CFUNCTYPE(c_int, c_void_p, POINTER(c_int))
_SET_CALL = CFUNCTYPE(c_int, c_void_p, c_char_p, c_void_p)
_GET_CALL = CFUNCTYPE(c_void_p, c_void_p, c_char_p)


def _others(*names: str) -> list[tuple[str, type[c_void_p]]]:
    """Functions that stay as they are."""
    return [(name, c_void_p) for name in names]


class _Methods(ctypes.Structure):
    """sqlite3_io_methods: what can be done with an open file."""

    _fields_ = (
        ("version", c_int),
        ("close", _CLOSE),
        ("read", c_void_p),
        ("write", _WRITE),
        ("truncate", _TRUNCATE),
        ("sync", _SYNC),
        *(
            (name, c_void_p)
            for name in ["size", "lock", "unlock", "reserved", "control", "sector", "device"]
        ),
        *((name, c_void_p) for name in ["shm_map", "shm_lock", "shm_barrier", "shm_unmap"]),
        *((name, c_void_p) for name in ["fetch", "unfetch"]),
    )


class _OpenFile(ctypes.Structure):
    """sqlite3_file: its first field is all that is public."""

    _fields_ = (("methods", POINTER(_Methods)),)


class _Vfs(ctypes.Structure):
    """sqlite3_vfs, third version."""

    _fields_ = (
        ("version", c_int),
        ("file_size", c_int),
        ("longest_path", c_int),
        ("next", c_void_p),
        ("name", c_char_p),
        ("data", c_void_p),
        ("open", _OPEN),
        ("delete", _DELETE),
        *(
            (name, c_void_p)
            for name in ["access", "full", "dl_open", "dl_error", "dl_sym", "dl_close"]
        ),
        *((name, c_void_p) for name in ["randomness", "sleep", "time", "last_error", "time64"]),
        ("set_call", _SET_CALL),
        ("get_call", _GET_CALL),
        ("next_call", c_void_p),
    )


class Recorder:
    """The layer. One for a process, and for all its life: SQLite may keep pointers to it."""

    def __init__(self) -> None:
        # The symbols of the library it is linked with, or has within itself.
        self._library = ctypes.CDLL(getattr(_sqlite3, "__file__", None))
        self._library.sqlite3_vfs_find.restype = POINTER(_Vfs)
        self._pointer: Any = self._library.sqlite3_vfs_find(None)
        self._real: Any = self._pointer.contents
        assert self._real.version >= 3, "SQLite's VFS is older than its third version"
        self._layer = _Vfs.from_buffer_copy(self._real)
        self._layer.name = b"recording"
        self._layer.open = _OPEN(self._open)
        self._layer.delete = _DELETE(self._delete)
        self._wrapped: dict[int, _Methods] = {}
        self._files: dict[int, tuple[int, Any]] = {}
        self._lock = threading.Lock()
        self._local = threading.local()
        self._watch_folder_syncs()
        self._prefix: bytes | None = None
        self._names: dict[str, int] = {}
        self._count = 0
        self.log: list[Event] = []

    @contextmanager
    def recording(self, folder: Path) -> Iterator[list[Event]]:
        """What happens to files of this folder; those that are there are known already."""
        self._prefix = f"{folder}/".encode()
        self._names = {name.name: at for at, name in enumerate(files_of(folder))}
        self._count = len(self._names)
        self.log = []
        self._library.sqlite3_vfs_register(ctypes.byref(self._layer), 1)
        try:
            yield self.log
        finally:
            self._library.sqlite3_vfs_register(self._pointer, 1)
            self._prefix = None

    def _watch_folder_syncs(self) -> None:
        """SQLite opens a folder for nothing else; the call after it is its fsync."""
        real = _OPEN_FOLDER(self._real.get_call(self._pointer, b"openDirectory"))

        def opened(name: int, fd: Any) -> int:
            self._local.folder = True
            return int(real(name, fd))

        self._opened = _OPEN_FOLDER(opened)
        pointer = ctypes.cast(self._opened, c_void_p)
        assert self._real.set_call(self._pointer, b"openDirectory", pointer) == _OK

    def _name(self, name: int | None) -> str | None:
        text = ctypes.string_at(name) if name else b""
        if self._prefix is None or not text.startswith(self._prefix):
            return None
        return text[len(self._prefix) :].decode()

    def _open(self, _: int, name: int | None, file: int, flags: int, out: int | None) -> int:
        code = int(self._real.open(self._pointer, name, file, flags, out))
        known = self._name(name)
        if code == _OK and known is not None:
            opened = _OpenFile.from_address(file)
            with self._lock:
                self._files[file] = self._number(known), opened.methods.contents
                opened.methods = ctypes.pointer(self._methods(opened.methods.contents))
        return code

    def _number(self, name: str) -> int:
        if name not in self._names:
            self._names[name] = self._count
            self.log.append(Made(self._count, name))
            self._count += 1
        return self._names[name]

    def _methods(self, real: Any) -> _Methods:
        address = ctypes.addressof(real)
        if address not in self._wrapped:
            wrapped = _Methods.from_buffer_copy(real)
            wrapped.close = _CLOSE(self._close)
            wrapped.write = _WRITE(self._write)
            wrapped.truncate = _TRUNCATE(self._truncate)
            wrapped.sync = _SYNC(self._sync)
            self._wrapped[address] = wrapped
        return self._wrapped[address]

    def _close(self, file: int) -> int:
        _, real = self._files.pop(file)
        return int(real.close(file))

    def _write(self, file: int, data: int, size: int, offset: int) -> int:
        number, real = self._files[file]
        code = int(real.write(file, data, size, offset))
        if code == _OK:
            self.log.append(Wrote(number, offset, ctypes.string_at(data, size)))
        return code

    def _truncate(self, file: int, size: int) -> int:
        number, real = self._files[file]
        code = int(real.truncate(file, size))
        if code == _OK:
            self.log.append(Resized(number, size))
        return code

    def _sync(self, file: int, flags: int) -> int:
        number, real = self._files[file]
        upto = len(self.log)
        self._local.folder = False
        code = int(real.sync(file, flags))
        if code == _OK:
            self.log.append(Synced(number, upto))
            if self._local.folder:
                self.log.append(Synced(None, upto))
        return code

    def _delete(self, _: int, name: int, sync: int) -> int:
        known = self._name(name)
        self._local.folder = False
        code = int(self._real.delete(self._pointer, name, sync))
        if code == _OK and known is not None and self._names.pop(known, None) is not None:
            self.log.append(Removed(known))
            if self._local.folder:
                self.log.append(Synced(None, len(self.log)))
        return code


def files_of(folder: Path) -> list[Path]:
    """Those that outlive a cut."""
    return [path for path in sorted(folder.iterdir()) if not path.name.endswith("-shm")]
