"""What `torch.save` wrote, read without torch and without trust.

Invariant: a pickle may name only what is in `_KNOWN`, and gets a stand-in of ours for it. Anything
else is refused by its name before it is looked up, so nothing of a hostile file is imported or
called.
"""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from producers.importers.source import BadImport

MAX_PICKLE_BYTES = 1 << 30
"""Of the structure itself; tensors lie beside it, and only those that are asked for are read."""

_STORAGES = {
    "DoubleStorage": "d",
    "FloatStorage": "f",
    "HalfStorage": "e",
    "LongStorage": "q",
    "IntStorage": "i",
    "ShortStorage": "h",
    "CharStorage": "b",
    "ByteStorage": "B",
    "BoolStorage": "?",
    "BFloat16Storage": "",
}
"""torch's storages and the code of their items; empty: read by nobody here."""
_NUMPY_CODES = {
    "f8": "d", "f4": "f", "f2": "e", "i8": "q", "i4": "i", "i2": "h", "i1": "b",
    "u8": "Q", "u4": "I", "u2": "H", "u1": "B", "b1": "?",
}  # fmt: skip


class Refused(pickle.UnpicklingError):
    """A pickle names what no dump has a use for."""


@dataclass(frozen=True, slots=True)
class _Storage:
    """A class of torch's storages."""

    name: str


class Tensor:
    """A tensor, read when it is asked for."""

    __slots__ = ("_count", "_key", "_offset", "_shape", "_source", "_storage")

    def __init__(
        self, source: _Archive, storage: str, key: str, offset: int, shape: tuple[int, ...]
    ) -> None:
        self._source, self._storage, self._key = source, storage, key
        self._offset, self._shape = offset, shape
        self._count = 1
        for size in shape:
            self._count *= size

    def __len__(self) -> int:
        return self._shape[0] if self._shape else 1

    def values(self) -> list[Any]:
        """(n,) its items, flat. Raises BadImport for a kind that is not read here."""
        code = _STORAGES[self._storage]
        if not code:
            raise BadImport(f"{self._source.name}: a tensor of {self._storage} can't be read here")
        return self._source.items(self._key, code, self._offset, self._count)


class Opaque:
    """Something that is in the file and that nobody here looks into."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __setstate__(self, _: Any) -> None: ...

    def __setitem__(self, _: Any, __: Any) -> None: ...


class _Dtype(Opaque):
    """A numpy dtype, by its code."""

    def __init__(self, code: Any = "", *_: Any) -> None:
        self.code = str(code)


def _scalar(dtype: Any, raw: Any = b"") -> Any:
    """A numpy scalar as the number that it is."""
    code = _NUMPY_CODES.get(dtype.code) if isinstance(dtype, _Dtype) else None
    if code is None or not isinstance(raw, bytes) or len(raw) != struct.calcsize(f"<{code}"):
        return Opaque()
    return struct.unpack(f"<{code}", raw)[0]


def _encode(text: Any, encoding: Any = "latin1") -> bytes:
    """Bytes, as protocol 2 spells them."""
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise Refused("_codecs.encode of anything but bytes spelt as latin1 text")
    return text.encode("latin-1")


def _opaque(*_: Any) -> Opaque:
    return Opaque()


_KNOWN: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("_codecs", "encode"): _encode,
    ("torch", "Size"): tuple,
    **{("torch", name): _Storage(name) for name in _STORAGES},
    **{
        (f"{numpy}.multiarray", name): stand_in
        for numpy in ("numpy.core", "numpy._core")
        for name, stand_in in (("scalar", _scalar), ("_reconstruct", _opaque))
    },
    ("numpy._core.numeric", "_frombuffer"): _opaque,
    ("numpy.core.numeric", "_frombuffer"): _opaque,
    ("numpy", "ndarray"): Opaque,
    ("numpy", "dtype"): _Dtype,
    **{
        (module, name): kind
        for module in ("builtins", "__builtin__")
        for name, kind in (("set", set), ("frozenset", frozenset))
    },
}
"""All that a pickle may name. `torch._utils._rebuild_tensor_v2` is bound to the file."""


class _Archive:
    """The zip that torch writes: one pickle, and a member for each storage."""

    def __init__(self, path: Path, name: str) -> None:
        self.name = name
        try:
            self._zip = zipfile.ZipFile(path)
        except OSError as error:
            raise BadImport(f"{name} can't be read: {error.strerror}") from None
        except zipfile.BadZipFile as error:
            raise BadImport(
                f"{name} must be a zip as torch.save writes it, and whole: {error}"
            ) from None
        for member in self._zip.infolist():
            if member.compress_type != zipfile.ZIP_STORED:
                raise BadImport(f"{name} must hold stored members, as torch.save writes them, got"
                                f" the compressed {member.filename}")  # fmt: skip
        found = [each for each in self._zip.namelist() if each.endswith("/data.pkl")]
        if len(found) != 1:
            raise BadImport(f"{name} must hold one data.pkl, got {len(found)}")
        self.pickle_name = found[0]
        self._prefix = found[0].removesuffix("data.pkl")
        self._big = self._member("byteorder", missing=b"little").strip() == b"big"

    def pickled(self) -> bytes:
        """The structure."""
        size = self._zip.getinfo(self.pickle_name).file_size
        if size > MAX_PICKLE_BYTES:
            raise BadImport(f"{self.name}: data.pkl must be at most {MAX_PICKLE_BYTES} bytes,"
                            f" got {size}")  # fmt: skip
        return self._member("data.pkl")

    def items(self, key: str, code: str, offset: int, count: int) -> list[Any]:
        """Some items of a storage."""
        raw, size = self._member(f"data/{key}"), struct.calcsize(f"<{code}")
        if offset < 0 or count < 0 or (offset + count) * size > len(raw):
            raise BadImport(
                f"{self.name}: storage {key} must have {offset + count} items of {size} bytes,"
                f" got {len(raw)} bytes"
            )
        order = ">" if self._big else "<"
        return list(struct.unpack_from(f"{order}{count}{code}", raw, offset * size))

    def _member(self, name: str, missing: bytes | None = None) -> bytes:
        try:
            return self._zip.read(self._prefix + name)
        except KeyError:
            if missing is not None:
                return missing
            raise BadImport(f"{self.name} must hold {name}, got none") from None
        except (zipfile.BadZipFile, OSError, RuntimeError) as error:
            raise BadImport(f"{self.name}: {name} is damaged: {error}") from None


class _Unpickler(pickle.Unpickler):
    """Knows `_KNOWN`, and nothing else."""

    def __init__(self, archive: _Archive) -> None:
        super().__init__(io.BytesIO(archive.pickled()), encoding="utf-8")
        self._archive = archive

    def find_class(self, module: str, name: str, /) -> Any:
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return self._tensor
        if (module, name) not in _KNOWN:
            raise Refused(f"{module}.{name}")
        return _KNOWN[module, name]

    def persistent_load(self, pid: Any, /) -> Any:
        parts = cast(tuple[Any, ...], pid)
        if len(parts) < 3 or parts[0] != "storage" or not isinstance(parts[1], _Storage):
            raise pickle.UnpicklingError(f"a persistent id must be of a storage, got {pid!r:.80}")
        return parts[1], str(parts[2])

    def _tensor(self, storage: Any, offset: Any, size: Any, *_: Any) -> Tensor:
        kind, key = storage
        return Tensor(self._archive, kind.name, key, int(offset), tuple(map(int, size)))


def load(path: Path, name: str) -> Any:
    """What `torch.save` wrote to `path`: dicts, lists, numbers, texts, tensors as `Tensor`, numpy
    arrays as `Opaque`. Raises BadImport, which calls the file `name`; of a pickle that names
    anything but these, with what it names."""
    archive = _Archive(path, name)
    try:
        return _Unpickler(archive).load()
    except Refused as error:
        raise BadImport(
            f"{name} names {error}, which a rollout dump has no use for: it was not loaded, and"
            " nothing of it was run"
        ) from None
    except BadImport:
        raise
    except Exception as error:  # a damaged pickle leads the reader to whatever it likes
        raise BadImport(f"{name} must be a whole pickle: {type(error).__name__}: {error}") from None
