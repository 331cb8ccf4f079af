"""Workers in two mounts that want the same names, pages and sizes.

Run as: python3 deadlock.py SECONDS STALL WORKERS MOUNT MOUNT. Every operation is timed; one that
takes longer than STALL seconds, or a worker that never ends, fails the run.
"""

import ctypes
import mmap
import os
import random
import sys
import time
import traceback

SECONDS, STALL = float(sys.argv[1]), float(sys.argv[2])
WORKERS, MOUNTS = int(sys.argv[3]), sys.argv[4:]
# Mappings are read up to here, and files are never cut shorter: beyond the end is SIGBUS.
KEPT = 64 << 10
FULL = 1 << 20


def expected(function, *arguments):
    """Runs it; losing a race for a name is no failure."""
    try:
        return function(*arguments)
    except (FileNotFoundError, FileExistsError):
        return None


def names(root, rng):
    name = f"{rng.choice(('one', 'two'))}/n{rng.randrange(8)}"
    other = f"{rng.choice(('one', 'two'))}/n{rng.randrange(8)}"
    path, target = os.path.join(root, name), os.path.join(root, other)
    choice = rng.randrange(5)
    if choice == 0:
        fd = expected(os.open, path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        if fd is not None:
            os.write(fd, b"new")
            os.close(fd)
    elif choice == 1:
        expected(os.unlink, path)
    elif choice == 2:
        expected(os.rename, path, target)
    elif choice == 3:
        expected(os.stat, path)
    else:
        os.listdir(os.path.dirname(path))


def content(root, rng):
    path = os.path.join(root, rng.choice(("one/a", "two/b")))
    fd = os.open(path, os.O_RDWR)
    choice = rng.randrange(5)
    try:
        if choice == 0:
            with mmap.mmap(fd, KEPT, access=mmap.ACCESS_READ) as mapping:
                sum(mapping[::4096])
        elif choice == 1:
            with mmap.mmap(fd, KEPT) as mapping:
                at = rng.randrange(KEPT - 100)
                mapping[at:at + 100] = b"m" * 100
        elif choice == 2:
            os.ftruncate(fd, rng.randrange(KEPT, FULL))
        elif choice == 3:
            os.pwrite(fd, b"w" * rng.randrange(1, 20000), rng.randrange(FULL))
        else:
            os.pread(fd, 200000, rng.randrange(FULL))
    finally:
        os.close(fd)


def worker(number):
    rng = random.Random(number)
    root = MOUNTS[number % len(MOUNTS)]
    work = (names, content)[number // len(MOUNTS) % 2]
    end = time.monotonic() + SECONDS
    count, worst = 0, 0.0
    while True:
        begin = time.monotonic()
        if begin > end:
            break
        work(root, rng)
        worst = max(worst, time.monotonic() - begin)
        count += 1
    print(f"worker {number}: {work.__name__} {count} operations, longest {worst:.3f} s", flush=True)
    return 0 if worst < STALL and count > 0 else 1


def main():
    children = []
    for number in range(WORKERS):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                code = worker(number)
            except BaseException:
                print(f"worker {number}:", traceback.format_exc(), file=sys.stderr, flush=True)
            finally:
                os._exit(code)
        children.append(pid)
    failed = 0
    for pid in children:
        _, status = os.waitpid(pid, 0)
        failed += status != 0
    sys.exit(1 if failed else 0)


ctypes.CDLL(None).prctl(1, 9)
main()
