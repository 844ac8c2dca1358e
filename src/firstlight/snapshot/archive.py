"""A snapshot in one file: a tar archive in canonical form.

Times, owners and modes are constant, files are in order and not compressed, because compressors
differ: the same snapshot gives the same archive, byte for byte. The reader accepts nothing else, so
nothing in an archive (a link, a device, a header of a gigabyte) can do harm.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import IO

from firstlight.snapshot.errors import HostileSnapshotError, UnusableSnapshotError
from firstlight.snapshot.layout import INDEX, LIMITS, SIGNATURE, id_of, is_id, require_safe
from firstlight.snapshot.sources import Item, Reader, missing_file, read_up_to, read_whole

#: Suffixes of archives; compressed ones are read, never written.
ARCHIVES = (".tar", ".tar.gz", ".tgz")
_BLOCK, _END = 512, bytes(1024)


def write_archive(target: IO[bytes], snapshot_id: str, files: Mapping[str, bytes]) -> None:
    """Write `files`, including `index.json` and `signature.json`, as an archive."""
    for path in ordered(files):
        data = files[path]
        target.write(header(snapshot_id, path, len(data)))
        target.write(data)
        target.write(bytes(-len(data) % _BLOCK))
    target.write(_END)


def ordered(paths: Iterable[str]) -> list[str]:
    """The order of files in an archive: index and signature first."""
    return sorted(paths, key=lambda path: (path != INDEX, path != SIGNATURE, path))


def header(snapshot_id: str, path: str, size: int) -> bytes:
    """The 512-byte POSIX ustar header of a file, with the snapshot's id as the folder."""
    none, name, folder = b"0000000\0", path.encode(), snapshot_id.encode()
    if len(name) > 100 or len(folder) > 155 or size >= 8**11:
        raise UnusableSnapshotError(f"{path}: name too long, or file too large, for an archive.")
    about = b"0000644\0" + none + none + b"%011o\0" % size + b"00000000000\0"  # no owner, no time
    start = name.ljust(100, b"\0") + about
    rest = b"0".ljust(101, b"\0") + b"ustar\00000" + bytes(64) + none + none + folder
    total = sum(start) + 8 * ord(" ") + sum(rest)  # the checksum counts as spaces in its own sum
    return (start + b"%06o\0 " % total + rest).ljust(_BLOCK, b"\0")


class Archive:
    """A tar archive as `publish` writes it, plain or within gzip, read from its beginning."""

    sees_all = True

    def __init__(self, name: str, opening: Callable[[], IO[bytes]]) -> None:
        self.name, self._opening = name, opening

    def named_id(self) -> str | None:
        """The id in the headers; the id in the file's name, if that one is wrong."""
        stem = self.name.rstrip("/").rsplit("/", 1)[-1].split(".", 1)[0]
        with self._opening() as file:
            for snapshot_id, path, content in self._entries(file):
                if not is_id(stem) or stem == snapshot_id:
                    return snapshot_id
                computed = id_of(read_whole(content, path, LIMITS.index_bytes))
                return snapshot_id if stem == computed else stem
        return None

    def walk(self) -> Iterator[Item]:
        ids, paths = set(), []
        with self._opening() as file:
            for snapshot_id, path, content in self._entries(file):
                ids.add(snapshot_id)
                paths.append(path)
                if len(ids) > 1:
                    raise HostileSnapshotError(f"{self.name}: contains files of two snapshots.")
                yield Item(path, content)
        if paths != ordered(paths):
            raise UnusableSnapshotError(f"{self.name}: its files are not in order.")

    def read(self, path: str, max_bytes: int) -> bytes:
        for item in self.walk():
            if item.path == path and item.content is not None:
                return read_whole(item.content, path, max_bytes)
        raise missing_file(self.name, path)

    def _entries(self, file: IO[bytes]) -> Iterator[tuple[str, str, _Content]]:
        """(id, path, content) of every file in order; the content is read or skipped in turn."""
        zipped = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        source: Reader = _Inflated(file, self.name) if zipped else file
        total = 0
        seen: set[str] = set()
        while (block := _read_exactly(source, _BLOCK, self.name)) != bytes(_BLOCK):
            snapshot_id, path, size = _parse_header(block, self.name)
            total += size
            if path in seen:
                raise HostileSnapshotError(f"{self.name}: the archive contains {path} twice.")
            seen.add(path)
            large = total > LIMITS.total_bytes or size > LIMITS.file_bytes
            if large or len(seen) > LIMITS.files + 2:
                raise HostileSnapshotError(
                    f"{self.name}: the archive has more than {LIMITS.total_bytes} bytes or "
                    f"{LIMITS.files} files."
                )
            content = _Content(source, size, self.name)
            yield snapshot_id, path, content
            content.finish()
        if _read_exactly(source, _BLOCK, self.name) != bytes(_BLOCK) or source.read(1):
            raise UnusableSnapshotError(f"{self.name}: the archive has data after its end.")


class _Content:
    """The bytes of one file in an archive."""

    def __init__(self, source: Reader, size: int, name: str) -> None:
        self._source, self._left, self._padding, self._name = source, size, -size % _BLOCK, name

    def read(self, size: int, /) -> bytes:
        data = _read_exactly(self._source, min(size, self._left), self._name)
        self._left -= len(data)
        return data

    def finish(self) -> None:
        """Skip what was not read; refuse padding that is not zero."""
        while self.read(1 << 16):
            pass
        if any(_read_exactly(self._source, self._padding, self._name)):
            raise UnusableSnapshotError(f"{self._name}: the archive has bytes between its files.")


def _parse_header(block: bytes, name: str) -> tuple[str, str, int]:
    kind = block[156:157]
    if block[257:262] != b"ustar":
        raise UnusableSnapshotError(f"{name}: not an archive of `firstlight publish`.")
    if kind != b"0":
        raise HostileSnapshotError(
            f"{name}: the archive contains an entry of kind {kind!r}, such as a link or a device. "
            "Snapshots have only plain files; nothing was unpacked."
        )
    try:
        path = block[:100].rstrip(b"\0").decode("ascii")
        snapshot_id = block[345:500].rstrip(b"\0").decode("ascii")
        size = int(block[124:135], 8)
    except ValueError:
        raise HostileSnapshotError(f"{name}: a header of the archive is not plain text.") from None
    require_safe(path)
    if not is_id(snapshot_id) or size < 0 or header(snapshot_id, path, size) != block:
        raise UnusableSnapshotError(
            f"{name}: the archive's header for {path} is not the one `firstlight publish` writes: "
            "it was changed, or packed by another program. Unpack it and verify the folder."
        )
    return snapshot_id, path, size


def _read_exactly(source: Reader, size: int, name: str) -> bytes:
    """Exactly `size` bytes; raises if the archive ends before."""
    data = read_up_to(source, size)
    if len(data) < size:
        raise UnusableSnapshotError(f"{name}: the archive is truncated.")
    return data


class _Inflated:
    """A reader of a gzip stream that refuses decompression bombs."""

    def __init__(self, source: Reader, name: str) -> None:
        self._source, self._name = source, name
        self._zlib = zlib.decompressobj(wbits=31)
        self._taken = self._given = 0

    def read(self, size: int, /) -> bytes:
        while not self._zlib.eof:
            fed = self._zlib.unconsumed_tail
            if not fed:
                fed = self._source.read(1 << 14)
                self._taken += len(fed)
            try:
                data = self._zlib.decompress(fed, size)
            except zlib.error as error:
                raise UnusableSnapshotError(f"{self._name}: damaged: {error}") from None
            self._given += len(data)
            # The first megabyte is exempt: a small archive of zeros is not a bomb.
            if self._given > (1 << 20) + LIMITS.compression * self._taken:
                raise HostileSnapshotError(
                    f"{self._name}: the archive grows more than {LIMITS.compression}-fold when "
                    "unpacked."
                )
            if data:
                return data
            if not fed:
                raise UnusableSnapshotError(f"{self._name}: the archive is truncated.")
        if self._zlib.unused_data or self._source.read(1):
            raise UnusableSnapshotError(f"{self._name}: the archive has data after its end.")
        return b""
