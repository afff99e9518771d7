"""Disks that misbehave for real: a small file system of its own, and calls that fail or hang.

Both work on a broker process from outside; nothing of the broker is patched.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.patience import until

SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static int there(const char *name) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", getenv("SHIM_FOLDER"), name);
    return access(path, F_OK) == 0;
}
static void mark(const char *what, char *path, size_t size) {
    snprintf(path, size, "%s/%s.%ld", getenv("SHIM_FOLDER"), what, (long)syscall(SYS_gettid));
    close(open(path, O_CREAT | O_WRONLY, 0600));
}
static __thread int writes;
static int hangs(const char *call) { return there("hang") || there(call); }
static void hang(const char *call) {
    char path[4096];
    if (!hangs(call)) return;
    mark(writes ? "writer-hangs" : "hangs", path, sizeof path);
    while (hangs(call)) usleep(1000);
    unlink(path);
}
static int broken(const char *name) {
    writes = 1;
    hang("hang-write");
    if (!there(name)) return 0;
    errno = EIO;
    return 1;
}
#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
static int synced(int (*real)(int), int fd, const char *call) {
    char path[4096];
    mark("syncing", path, sizeof path);
    while (hangs(call)) {
        unlink(path);
        hang(call);
        mark("syncing", path, sizeof path);
        if (hangs(call)) unlink(path);
    }
    int fails = there("sync");
    int result = fails ? -1 : real(fd);
    int error = fails ? EIO : errno;
    unlink(path);
    errno = error;
    return result;
}
int fdatasync(int fd) { return synced(REAL(fdatasync), fd, "hang-sync"); }
int fsync(int fd) { return synced(REAL(fsync), fd, "hang"); }
#define WRITE(name, off, ...) \
    ssize_t name(int fd, const struct iovec *v, int n, off at __VA_OPT__(, int flags)) { \
        return broken("write") ? -1 : REAL(name)(fd, v, n, at __VA_OPT__(, flags)); \
    }
WRITE(pwritev, off_t)
WRITE(pwritev64, off64_t)
WRITE(pwritev2, off_t, flags)
WRITE(pwritev64v2, off64_t, flags)
"""


class Shim:
    """System calls of a process started with `env`, switched from here while it runs."""

    def __init__(self, folder: Path, library: Path) -> None:
        self.folder = folder
        self.env = {"LD_PRELOAD": str(library), "SHIM_FOLDER": str(folder)}

    def hang(self, call: str = "") -> None:
        """Writes and syncs begun from now on do not return; no sync begun before is under way.

        call: "write" for writes only; "sync" for the writer's syncs only, and not for those with
        which others make files that the writer may need."""
        (self.folder / (f"hang-{call}" if call else "hang")).touch()
        until(lambda: not any(self.folder.glob("syncing.*")), what="syncs have ended or hang")

    def writer_hangs(self) -> bool:
        """Return whether the journal's writer is in a call that hangs: it has told the broker of
        every sync before that call."""
        return any(self.folder.glob("writer-hangs.*"))

    def go_on(self) -> None:
        for name in ("hang", "hang-write", "hang-sync"):
            (self.folder / name).unlink(missing_ok=True)

    def fail(self, call: str) -> None:
        """From now on every "write" or every "sync" fails with EIO."""
        (self.folder / call).touch()

    def recover(self, call: str) -> None:
        (self.folder / call).unlink()


def make_shim(folder: Path) -> Shim:
    """Compile it; skips the test where there is no C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None or os.uname().sysname != "Linux":
        pytest.skip("needs a C compiler, and LD_PRELOAD")
    folder.mkdir()
    source, library = folder / "shim.c", folder / "shim.so"
    source.write_text(SHIM)
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"the C compiler cannot make a shared library: {done.stderr[-300:]}")
    return Shim(folder, library)


@contextmanager
def small_disk(folder: Path, mib: int) -> Iterator[Path]:
    """A tmpfs of that size; skips the test where it cannot be mounted."""
    folder.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"size={mib}m".encode()
    if libc.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", 0, options):
        pytest.skip(f"cannot mount a tmpfs: {os.strerror(ctypes.get_errno())}")
    try:
        yield folder
    finally:
        libc.umount2(os.fsencode(folder), 2)  # MNT_DETACH


def free_bytes(folder: Path) -> int:
    facts = os.statvfs(folder)
    return facts.f_bavail * facts.f_frsize


def fill_up(folder: Path, leave: int, name: str = "filler") -> Path:
    """A file that takes all room but so much; remove it to give the room back."""
    filler = folder / name
    with filler.open("wb") as file:
        size = free_bytes(folder) - leave
        if size > 0:
            os.posix_fallocate(file.fileno(), 0, size)
    return filler
