"""Corner cases of POSIX: prints one line for each, the same on every correct file system.

Run as: python3 posix.py DIRECTORY. Each case gets an empty directory of its own as
its working directory. A line is `case: result`, where an OSError prints as its errno's name.
What file systems may choose (inode numbers, block counts, sizes of directories) is left out.
"""

import ctypes
import errno
import fcntl
import mmap
import os
import shutil
import signal
import stat
import struct
import sys
import time

libc = ctypes.CDLL(None, use_errno=True)
CASES = []


def case(function):
    CASES.append(function)
    return function


def name_of(error):
    return errno.errorcode.get(error.errno, error.errno)


def attempt(function, *arguments, **named):
    try:
        return function(*arguments, **named)
    except OSError as error:
        return name_of(error)


def checked(result):
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def renameat2(source, target, flags):
    checked(libc.renameat2(-100, source.encode(), -100, target.encode(), flags))


def name_it(fd, path):
    checked(libc.linkat(-100, f"/proc/self/fd/{fd}".encode(), -100, path.encode(), 0x400))


def fallocate(fd, mode, offset, length):
    checked(libc.fallocate(fd, mode, ctypes.c_long(offset), ctypes.c_long(length)))


def touch(path, data=b"", mode=0o644):
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, mode)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view):]
    finally:
        os.close(fd)


def read(path):
    with open(path, "rb") as file:
        return file.read()


def mode(path):
    return oct(os.lstat(path).st_mode)


def links(path):
    return os.lstat(path).st_nlink


def as_user(uid, gid, function, groups=()):
    """Runs `function` in a child as another user; gives what it prints."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        try:
            os.setgroups(list(groups))
            os.setgid(gid)
            os.setuid(uid)
            text = repr(function())
        except OSError as error:
            text = name_of(error)
        except BaseException as error:
            text = "unexpected " + repr(error)
        os.write(writer, str(text).encode())
        os._exit(0)
    os.close(writer)
    chunks = []
    while chunk := os.read(reader, 65536):
        chunks.append(chunk)
    os.close(reader)
    os.waitpid(pid, 0)
    return b"".join(chunks).decode()


# Opening and creating.

@case
def open_flags():
    yield attempt(os.open, "missing", os.O_RDONLY)
    yield attempt(os.open, "missing/x", os.O_CREAT | os.O_WRONLY)
    touch("file", b"0123456789")
    yield attempt(os.open, "file", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    yield attempt(os.open, "file/x", os.O_RDONLY)
    yield attempt(os.open, "file", os.O_DIRECTORY)
    yield attempt(os.open, ".", os.O_WRONLY)
    yield attempt(os.open, ".", os.O_CREAT | os.O_RDONLY)
    os.symlink("file", "link")
    yield attempt(os.open, "link", os.O_NOFOLLOW)
    yield attempt(os.open, "link", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    os.symlink("nowhere", "dangling")
    yield attempt(os.open, "dangling", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    os.close(os.open("dangling", os.O_CREAT | os.O_WRONLY))
    yield os.path.exists("nowhere")
    os.close(os.open("file", os.O_WRONLY | os.O_TRUNC))
    yield os.stat("file").st_size
    yield attempt(os.open, "x" * 256, os.O_CREAT | os.O_WRONLY)
    os.close(os.open("x" * 255, os.O_CREAT | os.O_WRONLY))
    yield len(max(os.listdir("."), key=len))


@case
def append_always_goes_to_the_end():
    a = os.open("f", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    b = os.open("f", os.O_WRONLY | os.O_APPEND)
    for index in range(20):
        os.write(a if index % 2 else b, b"%02d" % index)
    os.lseek(a, 0, os.SEEK_SET)
    os.write(a, b"end")
    os.close(a)
    os.close(b)
    yield read("f")


@case
def tmpfile_gets_a_name_later():
    fd = os.open(".", os.O_TMPFILE | os.O_RDWR, 0o600)
    os.write(fd, b"nameless")
    yield os.fstat(fd).st_nlink
    yield os.listdir(".")
    name_it(fd, "named")
    yield os.fstat(fd).st_nlink
    os.close(fd)
    yield read("named")
    fd = os.open(".", os.O_TMPFILE | os.O_RDWR | os.O_EXCL, 0o600)
    yield attempt(name_it, fd, "other")
    os.close(fd)


@case
def umask_and_modes():
    for mask in (0, 0o022, 0o077, 0o777):
        old = os.umask(mask)
        touch(f"f{mask}", mode=0o666)
        os.mkdir(f"d{mask}", 0o777)
        os.mkfifo(f"p{mask}", 0o666)
        os.umask(old)
        yield mode(f"f{mask}"), mode(f"d{mask}"), mode(f"p{mask}")
    os.chmod("f0", 0o7777)
    yield mode("f0")


@case
def nodes_of_every_type():
    for kind, name in ((stat.S_IFIFO, "fifo"), (stat.S_IFSOCK, "socket"), (stat.S_IFREG, "file"),
                       (stat.S_IFCHR, "char"), (stat.S_IFBLK, "block")):
        os.mknod(name, kind | 0o640, os.makedev(1, 3))
        status = os.lstat(name)
        device = status.st_rdev if kind in (stat.S_IFCHR, stat.S_IFBLK) else 0
        yield name, oct(status.st_mode), device, status.st_size, status.st_nlink
    fd = os.open("char", os.O_RDWR)
    yield os.write(fd, b"x"), os.read(fd, 1)
    os.close(fd)


# Links and names.

@case
def hard_links():
    touch("a", b"data")
    os.link("a", "b")
    yield links("a"), os.path.samefile("a", "b")
    yield attempt(os.link, "a", "b")
    yield attempt(os.link, "missing", "c")
    os.mkdir("d")
    yield attempt(os.link, "d", "e")
    os.unlink("a")
    yield links("b"), read("b")
    os.link("b", "d/a")
    os.rename("b", "d/c")
    yield links("d/a"), read("d/c")
    os.symlink("d/a", "s")
    os.link("s", "t", follow_symlinks=False)
    yield os.readlink("t"), links("s")


@case
def symbolic_links():
    for target in ("x", "/", "a" * 4095, "b" * 60, "c" * 61, "ä/\n"):
        os.symlink(target, "l")
        yield os.readlink("l") == target, os.lstat("l").st_size
        os.unlink("l")
    yield attempt(os.symlink, "a" * 4096, "l")
    yield attempt(os.symlink, "", "l")
    os.symlink("loop", "loop")
    yield attempt(os.stat, "loop")
    yield attempt(os.readlink, ".")
    yield mode("loop")


@case
def odd_names():
    for name in (b"\xff\xfe", b"a\nb", b" ", b"...", b"-", b"*", "ü€".encode(), b"x" * 255):
        os.close(os.open(name, os.O_CREAT | os.O_WRONLY))
    yield sorted(os.listdir(b"."))
    yield attempt(os.mkdir, b"y" * 256)
    yield attempt(os.stat, b"y" * 256)


@case
def deep_paths():
    depth = 0
    start = os.getcwd()
    for _ in range(60):
        os.mkdir("n" * 100)
        os.chdir("n" * 100)
        depth += 1
    touch("leaf", b"deep")
    yield depth, read("leaf")
    yield attempt(os.stat, start + ("/" + "n" * 100) * 60)
    os.chdir(start)


# Directories.

@case
def directories():
    yield attempt(os.mkdir, ".")
    os.mkdir("d")
    yield links("d"), links(".")
    yield attempt(os.mkdir, "d")
    os.mkdir("d/sub")
    yield links("d")
    yield attempt(os.rmdir, "d")
    yield attempt(os.unlink, "d")
    touch("f")
    yield attempt(os.rmdir, "f")
    yield attempt(os.rmdir, "missing")
    yield attempt(os.rmdir, "d/sub/.")
    yield attempt(os.rmdir, "d/..")
    os.rmdir("d/sub")
    yield links("d")
    os.rmdir("d")
    yield os.listdir(".")


@case
def a_removed_directory_that_is_somebodys_working_directory():
    os.mkdir("d")
    start = os.getcwd()
    os.chdir("d")
    os.rmdir(start + "/d")
    yield os.listdir(".")
    yield attempt(os.open, "x", os.O_CREAT | os.O_WRONLY)
    yield attempt(os.mkdir, "x")
    yield os.stat(".").st_nlink
    os.chdir(start)


@case
def set_gid_directories():
    os.mkdir("d")
    os.chown("d", 0, 4242)
    os.chmod("d", 0o2755)
    os.mkdir("d/sub")
    touch("d/file")
    yield os.stat("d/sub").st_gid, mode("d/sub")
    yield os.stat("d/file").st_gid, mode("d/file")


@case
def sticky_directories():
    os.chmod(".", 0o755)
    os.mkdir("d")
    os.chmod("d", 0o1777)
    touch("d/mine")
    touch("d/theirs")
    os.chown("d/theirs", 1234, 1234)
    path = os.path.abspath("d")
    yield as_user(1234, 1234, lambda: os.unlink(path + "/mine"))
    yield as_user(1234, 1234, lambda: os.rename(path + "/mine", path + "/x"))
    yield as_user(1234, 1234, lambda: os.unlink(path + "/theirs"))
    yield sorted(os.listdir("d"))


@case
def listing_while_removing():
    os.mkdir("d")
    for index in range(3000):
        touch(f"d/{index:05}")
    seen = []
    with os.scandir("d") as entries:
        for count, entry in enumerate(entries):
            seen.append(entry.name)
            if count % 2:
                os.unlink("d/" + entry.name)
    yield len(seen), len(set(seen))
    yield len(os.listdir("d"))
    shutil.rmtree("d")
    yield os.listdir(".")


@case
def seeking_in_directories():
    os.mkdir("d")
    for index in range(500):
        touch(f"d/{index}")
    libc.opendir.restype = ctypes.c_void_p
    libc.telldir.argtypes = [ctypes.c_void_p]
    libc.telldir.restype = ctypes.c_long
    libc.seekdir.argtypes = [ctypes.c_void_p, ctypes.c_long]
    libc.readdir.argtypes = [ctypes.c_void_p]
    libc.readdir.restype = ctypes.c_void_p
    libc.closedir.argtypes = [ctypes.c_void_p]

    def next_name(handle):
        entry = libc.readdir(handle)
        return ctypes.string_at(entry + 19) if entry else None

    handle = libc.opendir(b"d")
    places = []
    while True:
        place = libc.telldir(handle)
        name = next_name(handle)
        if name is None:
            break
        places.append((place, name))
    yield len(places)
    wrong = 0
    for place, name in places[::-7]:
        libc.seekdir(handle, place)
        wrong += next_name(handle) != name
    yield wrong
    libc.closedir(handle)


# Renaming.

@case
def renames():
    touch("a", b"A")
    touch("b", b"B")
    os.rename("a", "b")
    yield read("b"), os.listdir(".")
    os.link("b", "c")
    os.rename("b", "c")
    yield sorted(os.listdir(".")), links("c")
    os.mkdir("d")
    yield attempt(os.rename, "c", "d")
    yield attempt(os.rename, "d", "c")
    os.mkdir("e")
    touch("e/x")
    yield attempt(os.rename, "d", "e")
    os.rename("e", "d")
    yield os.listdir("d"), links(".")
    yield attempt(os.rename, "d", "d/inside")
    os.mkdir("d/deeper")
    yield attempt(os.rename, "d", "d/deeper/d")
    yield attempt(os.rename, "d/deeper", "d")
    yield attempt(os.rename, "missing", "x")
    yield attempt(os.rename, "c", "missing/x")
    yield attempt(os.rename, "c", "c/x")
    yield attempt(os.rename, "c", "y" * 256)
    yield attempt(os.rename, ".", "z")
    os.rename("c", "c")
    yield sorted(os.listdir("."))
    yield attempt(os.rename, "d", "nope/")
    os.mkdir("p")
    os.mkdir("q")
    os.mkdir("p/s")
    before = links("p"), links("q")
    os.rename("p/s", "q/s")
    yield before, links("p"), links("q"), os.path.samefile("q", "q/s/..")


@case
def renames_with_flags():
    touch("a", b"A")
    touch("b", b"B")
    yield attempt(renameat2, "a", "b", 1)
    renameat2("a", "c", 1)
    renameat2("b", "c", 2)
    yield read("b"), read("c")
    yield attempt(renameat2, "b", "missing", 2)
    yield attempt(renameat2, "b", "c", 3)
    os.mkdir("d")
    touch("d/x")
    renameat2("d", "c", 2)
    yield stat.S_ISDIR(os.stat("c").st_mode), read("d")
    os.mkdir("e")
    os.mkdir("e/f")
    yield attempt(renameat2, "e", "e/f", 2)
    yield links("."), links("c"), links("e")


# Reading and writing.

def whiteout(path):
    info = os.lstat(path)
    device = stat.S_ISCHR(info.st_mode), info.st_rdev, info.st_nlink
    return device + (oct(stat.S_IMODE(info.st_mode)), info.st_uid, info.st_gid)


@case
def renames_that_leave_a_whiteout():
    for name in "abce":
        touch(name, name.encode())
    os.mkdir("d")
    os.mkdir("handing-down")
    os.chown("handing-down", 0, 77)
    os.chmod("handing-down", 0o2777)
    touch("handing-down/f")
    links_before = links("."), links("d")
    renameat2("a", "d/a", 4)
    yield whiteout("a"), read("d/a"), (links("."), links("d")) == links_before
    renameat2("b", "c", 4)
    yield whiteout("b"), read("c"), sorted(os.listdir("."))
    yield attempt(renameat2, "d", "e", 4), attempt(renameat2, "c", "e", 5)
    yield attempt(renameat2, "c", "e", 6), attempt(renameat2, "missing", "x", 4)
    renameat2("c", "f", 5)
    renameat2("f", "c", 4)
    yield whiteout("f"), read("c")
    os.link("c", "second")
    renameat2("c", "second", 4)
    yield read("c"), links("c")
    renameat2("d", "g", 4)
    yield whiteout("d"), os.listdir("g")
    renameat2("handing-down/f", "h", 4)
    yield whiteout("handing-down/f")

    def by_another():
        os.chdir("handing-down")
        touch("mine")
        renameat2("mine", "yours", 4)
        return whiteout("mine")

    yield as_user(1000, 1001, by_another)
    os.unlink("a")
    yield attempt(os.lstat, "a")


@case
def an_overlay_has_its_upper_layer_here():
    merged = "/tmp/redbud-merged-%d" % os.getpid()
    for name in ("lower", "upper", "work", merged):
        os.mkdir(name)
    for name in "abc":
        touch("lower/" + name, b"lower " + name.encode())
    options = b"lowerdir=lower,upperdir=upper,workdir=work"
    yield attempt(lambda: checked(libc.mount(b"overlay", merged.encode(), b"overlay", 0, options)))
    try:
        touch(merged + "/a", b"changed")
        os.unlink(merged + "/b")
        os.rename(merged + "/c", merged + "/renamed")
        yield sorted(os.listdir(merged)), read(merged + "/a"), read(merged + "/renamed")
        yield attempt(read, merged + "/b"), attempt(read, merged + "/c")
    finally:
        libc.umount2(merged.encode(), 2)
        os.rmdir(merged)
    yield sorted(os.listdir("upper")), whiteout("upper/b")[:2], whiteout("upper/c")
    yield read("upper/renamed"), sorted(os.listdir("lower"))


class Mapped:
    """A bind mount of the working directory at another place: what is 0 here is 100000 there."""

    def __enter__(self):
        self.place = "/tmp/redbud-mapped-%d" % os.getpid()
        os.mkdir(self.place)
        reader, writer = os.pipe()
        self.child = os.fork()
        if self.child == 0:
            libc.unshare(0x10000000)
            os.write(writer, b"x")
            time.sleep(600)
            os._exit(0)
        os.read(reader, 1)
        os.close(reader), os.close(writer)
        for kind in ("uid_map", "gid_map"):
            with open(f"/proc/{self.child}/{kind}", "w") as file:
                file.write("0 100000 1000\n")
        users = os.open(f"/proc/{self.child}/ns/user", os.O_RDONLY)
        tree = checked(libc.syscall(428, -100, b".", 1 | os.O_CLOEXEC))
        try:
            attributes = struct.pack("QQQQ", 0x00100000, 0, 0, users)
            checked(libc.syscall(442, tree, b"", 0x1000, attributes, len(attributes)))
            checked(libc.syscall(429, tree, b"", -100, self.place.encode(), 4))
        except BaseException:
            self.__exit__()
            raise
        finally:
            os.close(users), os.close(tree)
        return self.place

    def __exit__(self, *_):
        libc.umount2(self.place.encode(), 2)
        os.rmdir(self.place)
        os.kill(self.child, signal.SIGKILL)
        os.waitpid(self.child, 0)


def owner(path):
    info = os.lstat(path)
    return info.st_uid, info.st_gid


@case
def a_mount_that_maps_ids():
    os.chmod(".", 0o777)
    touch("f", b"x")
    touch("secret", b"s", mode=0o600)
    os.chown("secret", 7, 8)
    touch("unmapped")
    os.chown("unmapped", 5000, 5000)
    here = os.getcwd()
    with Mapped() as there:
        at = lambda name: os.path.join(there, name)
        yield owner(at("f")), owner(at("secret")), owner(at("unmapped"))
        os.chown(at("f"), 100007, 100008)
        yield owner("f"), owner(at("f"))
        yield attempt(os.chown, at("f"), 7, 8), attempt(os.chown, at("f"), 0, -1)

        def by_one_who_is_mapped():
            touch(at("made"), b"made")
            os.mkdir(at("dir"))
            os.symlink("x", at("link"))
            os.mkfifo(at("fifo"))
            os.close(os.open(there, os.O_TMPFILE | os.O_RDWR))
            os.rename(at("made"), at("moved"))
            os.link(at("moved"), at("second"))
            os.chmod(at("moved"), 0o640)
            os.utime(at("moved"), (1, 2))
            os.setxattr(at("moved"), "user.a", b"1")
            names = os.listxattr(at("moved"))
            renameat2(at("second"), at("third"), 4)
            return [owner(at(n)) for n in ("moved", "dir", "link", "fifo", "second")], names

        yield as_user(100005, 100006, by_one_who_is_mapped)
        yield [owner(n) for n in ("moved", "dir", "link", "fifo", "second")]

        def by_another():
            # Who is 100000 has number 0 on the disk, and the rights of nobody else.
            return (attempt(read, at("secret")), attempt(touch, at("secret"), b"no"),
                    attempt(os.chmod, at("moved"), 0o777), attempt(os.chown, at("moved"), 100000, -1),
                    attempt(os.setxattr, at("secret"), "user.a", b"1"),
                    attempt(os.open, at("secret"), os.O_CREAT | os.O_RDWR, 0o600))

        yield as_user(100000, 100000, by_another)
        yield as_user(100005, 100006, lambda: attempt(touch, at("secret"), b"no"))
        yield as_user(4000, 4000, lambda: attempt(touch, at("who"), b"no"))
        yield as_user(0, 0, lambda: attempt(touch, at("root"), b"no"))

        os.chmod(here, 0o1777)
        yield as_user(100009, 100009, lambda: attempt(os.unlink, at("moved")))
        yield as_user(100005, 100006, lambda: attempt(os.unlink, at("moved")))
        # Set-id bits go when a stranger writes.
        touch("set-id", b"1234", mode=0o777)
        os.chmod("set-id", 0o6777)

        def writes():
            fd = os.open(at("set-id"), os.O_RDWR)
            fallocate(fd, 0, 0, 100)
            os.close(fd)

        yield as_user(100005, 100006, writes), mode("set-id")
    yield sorted(os.listdir("."))


@case
def privileges_without_a_mapping():
    touch("f", b"1234", mode=0o777)
    os.chmod("f", 0o6777)
    os.setxattr("f", "trusted.a", b"1")
    os.setxattr("f", "user.b", b"2")
    os.setxattr("f", "trusted.c", b"3")
    fd = os.open("f", os.O_RDWR)
    fallocate(fd, 0, 0, 100)
    yield mode("f"), sorted(os.listxattr("f"))
    yield as_user(1000, 1000, lambda: sorted(os.listxattr("f")))
    path = os.path.abspath("f")

    def writes():
        own = os.open(path, os.O_RDWR)
        fallocate(own, 0, 0, 100)
        os.close(own)

    yield as_user(1000, 1000, writes), mode("f")
    os.close(fd)


@case
def sparse_files():
    fd = os.open("f", os.O_CREAT | os.O_RDWR)
    os.pwrite(fd, b"x", 1 << 40)
    yield os.fstat(fd).st_size, os.pread(fd, 4, (1 << 40) - 3), os.pread(fd, 10, 12345)
    os.ftruncate(fd, 3)
    yield os.fstat(fd).st_size, os.pread(fd, 10, 0)
    os.ftruncate(fd, 10000)
    yield os.pread(fd, 20000, 0) == bytes(10000)
    os.close(fd)


@case
def limits_of_offsets():
    fd = os.open("f", os.O_CREAT | os.O_RDWR)
    yield attempt(os.pread, fd, 1, -1)
    yield attempt(os.ftruncate, fd, -1)
    yield attempt(os.lseek, fd, -1, os.SEEK_SET)
    yield os.pread(fd, 10, 1 << 50)
    yield os.write(fd, b"")
    os.close(fd)
    fd = os.open("f", os.O_RDONLY)
    yield attempt(os.write, fd, b"x")
    yield attempt(os.ftruncate, fd, 0)
    os.close(fd)
    fd = os.open("f", os.O_WRONLY)
    yield attempt(os.read, fd, 1)
    os.close(fd)
    yield attempt(os.truncate, ".", 0)
    yield attempt(os.truncate, "missing", 0)


@case
def truncation_never_shows_old_bytes():
    for size in (1, 100, 4095, 4096, 4097, 8192, 70000):
        touch("f", b"\xaa" * 70001)
        os.truncate("f", size)
        os.truncate("f", 100000)
        data = read("f")
        yield size, len(data), data[:size] == b"\xaa" * size, data[size:] == bytes(100000 - size)
        fd = os.open("f", os.O_WRONLY)
        os.pwrite(fd, b"tail", 99996)
        os.close(fd)
        yield read("f")[-6:]


@case
def overlapping_writes():
    expected = bytearray(300000)
    fd = os.open("f", os.O_CREAT | os.O_RDWR)
    os.ftruncate(fd, 300000)
    for step in range(200):
        offset = step * 7919 % 290000
        data = bytes([step % 251 + 1]) * (step * 37 % 9000 + 1)
        os.pwrite(fd, data, offset)
        expected[offset:offset + len(data)] = data
    expected = expected[:max(300000, len(expected))]
    yield os.pread(fd, 400000, 0) == bytes(expected)
    os.fsync(fd)
    os.close(fd)
    yield read("f") == bytes(expected)


@case
def allocation():
    fd = os.open("f", os.O_CREAT | os.O_RDWR)
    fallocate(fd, 0, 0, 100000)
    yield os.fstat(fd).st_size, os.pread(fd, 100000, 0) == bytes(100000)
    os.pwrite(fd, b"\xbb" * 100000, 0)
    fallocate(fd, 1, 100000, 50000)
    yield os.fstat(fd).st_size
    fallocate(fd, 3, 5000, 20000)
    data = os.pread(fd, 100000, 0)
    yield data[:5000] == b"\xbb" * 5000, data[5000:25000] == bytes(20000), data[25000:] == b"\xbb" * 75000
    fallocate(fd, 0x10, 30000, 90000)
    data = os.pread(fd, 200000, 0)
    yield len(data), data[25000:30000] == b"\xbb" * 5000, data[30000:] == bytes(90000)
    fallocate(fd, 0x11, 110000, 50000)
    yield os.fstat(fd).st_size
    yield attempt(fallocate, fd, 2, 0, 4096)
    yield attempt(fallocate, fd, 0, 0, 0)
    yield attempt(fallocate, fd, 0, -1, 10)
    os.close(fd)
    fd = os.open("f", os.O_RDONLY)
    yield attempt(fallocate, fd, 0, 0, 10)
    os.close(fd)


@case
def holes_and_data():
    fd = os.open("f", os.O_CREAT | os.O_RDWR)
    yield attempt(os.lseek, fd, 0, os.SEEK_DATA), attempt(os.lseek, fd, 0, os.SEEK_HOLE)
    os.pwrite(fd, b"x" * 4096, 65536)
    os.ftruncate(fd, 1 << 20)
    os.fsync(fd)
    yield os.lseek(fd, 0, os.SEEK_DATA), os.lseek(fd, 65536, os.SEEK_HOLE)
    yield os.lseek(fd, 0, os.SEEK_HOLE), attempt(os.lseek, fd, 70000, os.SEEK_DATA)
    yield attempt(os.lseek, fd, 1 << 20, os.SEEK_HOLE), os.lseek(fd, 500000, os.SEEK_HOLE)
    os.close(fd)


@case
def copying_ranges():
    touch("a", bytes(range(256)) * 400)
    source = os.open("a", os.O_RDONLY)
    target = os.open("b", os.O_CREAT | os.O_RDWR)
    done = 0
    while done < 100000:
        count = os.copy_file_range(source, target, 100000 - done, 100 + done, 50 + done)
        if count == 0:
            break
        done += count
    yield done, read("b")[50:] == read("a")[100:100100]
    yield os.copy_file_range(source, target, 100, 1 << 30, 0)
    os.close(source)
    os.close(target)


@case
def mappings():
    touch("f", b"a" * 10000)
    fd = os.open("f", os.O_RDWR)
    shared = mmap.mmap(fd, 10000)
    private = mmap.mmap(fd, 10000, flags=mmap.MAP_PRIVATE)
    shared[5000:5003] = b"XYZ"
    private[6000:6003] = b"pqr"
    yield shared[4999:5004], private[6000:6003]
    yield os.pread(fd, 5, 4999), os.pread(fd, 3, 6000)
    os.pwrite(fd, b"123", 7000)
    yield shared[7000:7003]
    shared.flush()
    shared.close()
    private.close()
    os.close(fd)
    data = read("f")
    yield len(data), data[5000:5003], data[6000:6003], data[7000:7003]


@case
def stores_into_a_mapping_are_data_before_they_are_written_back():
    fd = os.open("f", os.O_CREAT | os.O_RDWR)
    os.ftruncate(fd, 1 << 20)
    shared = mmap.mmap(fd, 1 << 20)
    yield attempt(os.lseek, fd, 0, os.SEEK_DATA)
    shared[65536:65540] = b"data"
    yield os.lseek(fd, 0, os.SEEK_DATA), os.lseek(fd, 65536, os.SEEK_HOLE)
    shared.close()
    os.close(fd)


@case
def direct_writes_and_buffered_reads_agree():
    fd = os.open("f", os.O_CREAT | os.O_RDWR | os.O_DIRECT)
    page = mmap.mmap(-1, 65536)
    page.write(b"\xcd" * 65536)
    yield os.pwrite(fd, page, 4096)
    yield read("f") == bytes(4096) + b"\xcd" * 65536
    touch("g", b"\xef" * 8192)
    direct = os.open("g", os.O_RDONLY | os.O_DIRECT)
    yield os.preadv(direct, [page], 0), page[:8192] == b"\xef" * 8192
    os.close(direct)
    os.close(fd)


@case
def synchronous_files():
    for flag in (os.O_SYNC, os.O_DSYNC):
        fd = os.open("f", os.O_CREAT | os.O_WRONLY | flag)
        yield os.write(fd, b"durable")
        os.close(fd)
    fd = os.open(".", os.O_RDONLY)
    yield attempt(os.fsync, fd), attempt(os.fdatasync, fd), libc.syncfs(fd)
    os.close(fd)


@case
def a_removed_file_stays_until_it_is_closed():
    fd = os.open("f", os.O_CREAT | os.O_RDWR)
    os.write(fd, b"before")
    os.unlink("f")
    yield os.fstat(fd).st_nlink, os.listdir(".")
    os.write(fd, b" after")
    yield os.pread(fd, 100, 0)
    os.ftruncate(fd, 3)
    yield os.pread(fd, 100, 0)
    touch("f", b"new")
    yield read("f"), os.pread(fd, 100, 0)
    os.close(fd)


# Attributes.

@case
def ownership():
    touch("f")
    os.chown("f", 1000, 2000)
    yield os.stat("f").st_uid, os.stat("f").st_gid
    os.chown("f", -1, 3000)
    yield os.stat("f").st_uid, os.stat("f").st_gid
    os.symlink("f", "l")
    os.lchown("l", 7, 8)
    yield os.lstat("l").st_uid, os.stat("l").st_uid
    path = os.path.abspath("f")
    os.chmod(".", 0o755)
    yield as_user(1000, 1000, lambda: os.chown(path, 1001, -1))
    yield as_user(1000, 1000, lambda: os.chown(path, -1, 1000))
    yield as_user(1000, 1000, lambda: os.chown(path, -1, 5555))
    yield as_user(1000, 1000, lambda: os.chown(path, -1, 5555), groups=(5555,))
    yield as_user(4321, 4321, lambda: os.chmod(path, 0o777))
    yield os.stat("f").st_gid, mode("f")


@case
def set_id_bits_go_with_ownership_and_writes():
    os.chmod(".", 0o777)
    touch("f", b"x")
    os.chmod("f", 0o6777)
    os.chown("f", 1000, 1000)
    yield mode("f")
    os.chmod("f", 0o6777)
    path = os.path.abspath("f")
    yield as_user(2222, 2222, lambda: touch_append(path)), mode("f")
    os.chmod("f", 0o6777)
    yield as_user(2222, 2222, lambda: os.truncate(path, 0)), mode("f")
    os.chmod("f", 0o2745)
    yield as_user(1000, 4444, lambda: os.chmod(path, 0o2755)), mode("f")
    os.chmod("f", 0o6777)
    touch("f", b"by root")
    yield mode("f")


def touch_append(path):
    fd = os.open(path, os.O_WRONLY | os.O_APPEND)
    count = os.write(fd, b"y")
    os.close(fd)
    return count


@case
def permissions():
    os.chmod(".", 0o755)
    os.mkdir("d", 0o750)
    os.chown("d", 1000, 2000)
    touch("d/f", b"secret", mode=0o640)
    os.chown("d/f", 1000, 2000)
    path = os.path.abspath("d")
    yield as_user(1000, 1, lambda: read(path + "/f"))
    yield as_user(3000, 2000, lambda: read(path + "/f"))
    yield as_user(3000, 3000, lambda: read(path + "/f"), groups=(2000,))
    yield as_user(3000, 3000, lambda: read(path + "/f"))
    yield as_user(3000, 2000, lambda: touch(path + "/g"))
    yield as_user(3000, 2000, lambda: os.open(path + "/f", os.O_WRONLY))
    yield as_user(3000, 3000, lambda: os.listdir(path))
    os.chmod("d", 0o711)
    yield as_user(3000, 3000, lambda: os.listdir(path)), as_user(3000, 3000, lambda: os.stat(path + "/f").st_size)
    os.chmod("d/f", 0o000)
    yield as_user(1000, 1000, lambda: read(path + "/f")), read("d/f")
    yield as_user(1000, 1000, lambda: os.access(path + "/f", os.R_OK)), os.access("d/f", os.X_OK)


@case
def times():
    touch("f", b"x")
    os.utime("f", ns=(1_000_000_001, 2_000_000_002))
    status = os.stat("f")
    yield status.st_atime_ns, status.st_mtime_ns
    os.utime("f", ns=(-5_000_000_000, 4_000_000_000_000_000_000))
    status = os.stat("f")
    yield status.st_atime_ns, status.st_mtime_ns
    before = os.stat("f")
    time.sleep(0.02)
    with open("f", "ab") as file:
        file.write(b"y")
    after = os.stat("f")
    yield after.st_mtime_ns != before.st_mtime_ns, after.st_ctime_ns > before.st_ctime_ns
    time.sleep(0.02)
    os.chmod("f", 0o600)
    last = os.stat("f")
    yield last.st_mtime_ns == after.st_mtime_ns, last.st_ctime_ns > after.st_ctime_ns
    os.symlink("f", "l")
    os.utime("l", ns=(3_000_000_000, 4_000_000_000), follow_symlinks=False)
    yield os.lstat("l").st_mtime_ns, os.stat("f").st_mtime_ns == last.st_mtime_ns


@case
def times_of_directories():
    os.mkdir("d")
    os.mkdir("e")
    touch("d/f")
    touch("g")

    def changes(action):
        paths = ("d", "e", "d/f" if os.path.exists("d/f") else "e/f")
        before = {path: os.stat(path) for path in ("d", "e")}
        time.sleep(0.02)
        action()
        result = []
        for path in ("d", "e"):
            now = os.stat(path)
            result.append((now.st_mtime_ns > before[path].st_mtime_ns, now.st_ctime_ns > before[path].st_ctime_ns))
        return action.__name__, result, len(paths)

    def link():
        os.link("g", "d/g")

    def rename():
        os.rename("d/f", "e/f")

    def unlink():
        os.unlink("d/g")

    def mkdir():
        os.mkdir("d/sub")

    def rmdir():
        os.rmdir("d/sub")

    def symlink():
        os.symlink("x", "e/s")

    def chmod():
        os.chmod("d", 0o700)

    def write():
        touch("e/f", b"content")

    for action in (link, rename, unlink, mkdir, rmdir, symlink, chmod, write):
        yield changes(action)


# Extended attributes and ACLs.

@case
def extended_attributes():
    touch("f")
    os.setxattr("f", "user.a", b"1")
    os.setxattr("f", "user.b", b"")
    yield sorted(os.listxattr("f")), os.getxattr("f", "user.a"), os.getxattr("f", "user.b")
    yield attempt(os.setxattr, "f", "user.a", b"2", os.XATTR_CREATE)
    yield attempt(os.setxattr, "f", "user.c", b"2", os.XATTR_REPLACE)
    os.setxattr("f", "user.a", b"x" * 2000)
    yield len(os.getxattr("f", "user.a"))
    yield attempt(os.getxattr, "f", "user.none")
    yield attempt(os.removexattr, "f", "user.none")
    os.removexattr("f", "user.a")
    yield os.listxattr("f")
    yield attempt(os.setxattr, "f", "nonsense", b"x"), attempt(os.setxattr, "f", "other.x", b"x")
    for name in ("user.", "trusted.", "security.", "system."):
        yield attempt(os.getxattr, "f", name), attempt(os.setxattr, "f", name, b"x"), attempt(os.removexattr, "f", name)
    yield attempt(os.setxattr, "f", "user." + "n" * 251, b"x")
    os.setxattr("f", "user." + "n" * 250, b"x")
    yield sorted(map(len, os.listxattr("f")))
    os.setxattr("f", "trusted.t", b"root")
    os.setxattr("f", "security.s", b"sec")
    yield os.getxattr("f", "trusted.t"), os.getxattr("f", "security.s")
    os.symlink("f", "l")
    yield attempt(os.setxattr, "l", "user.x", b"1", follow_symlinks=False)
    os.setxattr("l", "trusted.x", b"1", follow_symlinks=False)
    yield os.listxattr("l", follow_symlinks=False)
    os.mkdir("d")
    os.setxattr("d", "user.d", b"dir")
    yield os.getxattr("d", "user.d")
    path = os.path.abspath("f")
    os.chmod(".", 0o755)
    yield as_user(1000, 1000, lambda: os.getxattr(path, "user.b"))
    yield as_user(1000, 1000, lambda: os.setxattr(path, "user.b", b"x"))
    yield as_user(1000, 1000, lambda: os.getxattr(path, "trusted.t"))
    yield as_user(1000, 1000, lambda: sorted(map(len, os.listxattr(path))))


@case
def a_write_takes_capabilities_away():
    os.chmod(".", 0o755)
    path = os.path.abspath("f")
    capability = b"".join(word.to_bytes(4, "little") for word in (0x02000001, 1 << 13, 0, 0, 0))

    def lasts():
        return "security.capability" in os.listxattr("f")

    def changes(change):
        touch("f", b"x" * 9000)
        os.chmod("f", 0o666)
        os.setxattr("f", "security.capability", capability)
        before = lasts()
        change()
        return before, lasts()

    def write(flags, times=1):
        fd = os.open(path, flags)
        for _ in range(times):
            os.write(fd, b"y" * 100)
        os.close(fd)

    def write_twice(flags):
        fd = os.open("f", flags)
        os.write(fd, b"y")
        os.setxattr("f", "security.capability", capability)
        os.write(fd, b"z")
        os.close(fd)

    def direct():
        page = mmap.mmap(-1, 4096)
        fd = os.open(path, os.O_WRONLY | os.O_DIRECT)
        os.write(fd, page)
        os.close(fd)

    def by_descriptor(change):
        fd = os.open("f", os.O_RDWR)
        change(fd)
        os.close(fd)

    for flags in (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_APPEND, os.O_WRONLY | os.O_TRUNC):
        yield changes(lambda: os.close(os.open("f", flags)))
        yield changes(lambda: write(flags)), changes(lambda: write_twice(flags))
        yield changes(lambda: as_user(1000, 1000, lambda: write(flags, 2)))
    yield changes(direct), changes(lambda: os.truncate("f", 100))
    yield changes(lambda: by_descriptor(lambda fd: os.ftruncate(fd, 10)))
    yield changes(lambda: by_descriptor(lambda fd: os.posix_fallocate(fd, 0, 20000)))
    yield changes(lambda: os.chown("f", 5, 5)), changes(lambda: os.utime("f")), changes(lambda: os.chmod("f", 0o600))


def acl(entries):
    """POSIX ACL as the kernel has it: version 2, then tag, permission, id."""
    out = (2).to_bytes(4, "little")
    for tag, bits, who in entries:
        out += tag.to_bytes(2, "little") + bits.to_bytes(2, "little") + (who & 0xFFFFFFFF).to_bytes(4, "little")
    return out


USER_OBJ, USER, GROUP_OBJ, GROUP, MASK, OTHER = 1, 2, 4, 8, 16, 32


@case
def access_control_lists():
    os.chmod(".", 0o755)
    touch("f", b"acl", mode=0o600)
    path = os.path.abspath("f")
    yield as_user(1000, 1000, lambda: read(path))
    os.setxattr("f", "system.posix_acl_access",
                acl([(USER_OBJ, 6, -1), (USER, 4, 1000), (GROUP_OBJ, 0, -1), (MASK, 4, -1), (OTHER, 0, -1)]))
    yield mode("f"), as_user(1000, 1000, lambda: read(path)), as_user(1001, 1001, lambda: read(path))
    os.chmod("f", 0o600)
    yield mode("f"), as_user(1000, 1000, lambda: read(path))
    yield os.getxattr("f", "system.posix_acl_access").hex()
    yield attempt(os.setxattr, "f", "system.posix_acl_default", acl([(USER_OBJ, 7, -1), (GROUP_OBJ, 5, -1), (OTHER, 5, -1)]))
    yield attempt(os.setxattr, "f", "system.posix_acl_access", b"\x02\0\0\0nonsense")
    os.setxattr("f", "system.posix_acl_access", acl([(USER_OBJ, 6, -1), (GROUP_OBJ, 4, -1), (OTHER, 4, -1)]))
    yield mode("f"), attempt(os.getxattr, "f", "system.posix_acl_access")


@case
def default_access_control_lists():
    os.mkdir("d")
    os.setxattr("d", "system.posix_acl_default",
                acl([(USER_OBJ, 7, -1), (USER, 7, 1000), (GROUP_OBJ, 5, -1), (MASK, 7, -1), (OTHER, 0, -1)]))
    old = os.umask(0o077)
    touch("d/f", mode=0o666)
    os.mkdir("d/sub", 0o777)
    os.umask(old)
    yield mode("d/f"), os.getxattr("d/f", "system.posix_acl_access").hex()
    yield attempt(os.getxattr, "d/f", "system.posix_acl_default")
    yield mode("d/sub"), os.getxattr("d/sub", "system.posix_acl_access").hex()
    yield os.getxattr("d/sub", "system.posix_acl_default").hex()
    os.removexattr("d", "system.posix_acl_default")
    os.mkdir("d/plain")
    yield attempt(os.getxattr, "d/plain", "system.posix_acl_default")


# Locks.

@case
def record_locks():
    touch("f", b"x" * 100)
    fd = os.open("f", os.O_RDWR)
    fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 0)
    path = os.path.abspath("f")

    def other(kind, length, start):
        child = os.open(path, os.O_RDWR)
        fcntl.lockf(child, kind | fcntl.LOCK_NB, length, start)
        return "locked"

    yield as_user(0, 0, lambda: other(fcntl.LOCK_EX, 10, 5))
    yield as_user(0, 0, lambda: other(fcntl.LOCK_SH, 10, 0))
    yield as_user(0, 0, lambda: other(fcntl.LOCK_EX, 10, 10))
    fcntl.lockf(fd, fcntl.LOCK_SH, 10, 0)
    yield as_user(0, 0, lambda: other(fcntl.LOCK_SH, 10, 0)), as_user(0, 0, lambda: other(fcntl.LOCK_EX, 10, 0))
    fcntl.lockf(fd, fcntl.LOCK_UN, 5, 0)
    yield as_user(0, 0, lambda: other(fcntl.LOCK_EX, 5, 0)), as_user(0, 0, lambda: other(fcntl.LOCK_EX, 10, 0))
    again = os.open("f", os.O_RDONLY)
    os.close(again)
    yield as_user(0, 0, lambda: other(fcntl.LOCK_EX, 10, 0))
    os.close(fd)


@case
def whole_file_locks():
    touch("f")
    first = os.open("f", os.O_RDWR)
    second = os.open("f", os.O_RDWR)
    fcntl.flock(first, fcntl.LOCK_EX)
    yield attempt(fcntl.flock, second, fcntl.LOCK_EX | fcntl.LOCK_NB)
    yield attempt(fcntl.flock, second, fcntl.LOCK_SH | fcntl.LOCK_NB)
    fcntl.flock(first, fcntl.LOCK_SH)
    yield attempt(fcntl.flock, second, fcntl.LOCK_SH | fcntl.LOCK_NB)
    duplicate = os.dup(first)
    os.close(first)
    yield attempt(fcntl.flock, second, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(duplicate)
    yield attempt(fcntl.flock, second, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(second)


@case
def a_wait_for_a_lock_can_be_interrupted():
    touch("f")
    fd = os.open("f", os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    path = os.path.abspath("f")

    def other():
        class Interrupted(Exception):
            pass

        def on_alarm(*_):
            raise Interrupted

        signal.signal(signal.SIGALRM, on_alarm)
        child = os.open(path, os.O_RDWR)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        try:
            fcntl.flock(child, fcntl.LOCK_EX)
        except Interrupted:
            return "interrupted"
        return "locked"

    yield as_user(0, 0, other)
    os.close(fd)


def main():
    root = os.path.abspath(sys.argv[1])
    only = sys.argv[2:]
    os.umask(0o022)
    for function in CASES:
        name = function.__name__
        if only and name not in only:
            continue
        place = os.path.join(root, "case-" + name)
        os.mkdir(place)
        os.chdir(place)
        try:
            for step, result in enumerate(function()):
                print(f"{name}.{step}: {result!r}", flush=True)
        except BaseException as error:
            print(f"{name}: ended by {type(error).__name__}: {error}", flush=True)
        os.chdir(root)
        shutil.rmtree(place)
    print("left over:", os.listdir(root))


main()
