"""Folders of a Hugging Face checkpoint: config.json, and safetensors in one file or several.

Invariant: a folder that has its name is whole. It is written beside, checked and renamed, so a
reader sees all of it or none, whenever the writer is killed.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ledger.durable import sync
from trainer.architecture import ModelConfig, UnsupportedModel, read_config, to_hf
from trainer.layouts import Shape, weights

INDEX = "model.safetensors.index.json"
SHARD_BYTES = 4 * 2**30
"""A file is closed once it has this many: what the writer holds in memory at most, and a tensor."""
_COMPANIONS = (
    "generation_config.json", "tokenizer*", "vocab.*", "merges.txt", "special_tokens_map.json",
    "added_tokens.json", "chat_template*",
)  # fmt: skip
_NAMED = 5
"""A message names this many tensors of each kind."""


class WrongCheckpoint(ValueError):
    """A checkpoint that isn't of the model that was asked for, or can't be read."""


class Tensors:
    """The tensors of a checkpoint, read one at a time."""

    def __init__(self, folder: Path) -> None:
        """Opens the headers. Raises WrongCheckpoint."""
        self.folder = folder
        self.shapes: dict[str, Shape] = {}
        self._files: dict[str, Any] = {}
        for path in _tensor_files(folder):
            try:
                file = safe_open(path, framework="pt")
            except (SafetensorError, OSError) as error:
                raise WrongCheckpoint(f"{path} can't be read: {error}") from error
            for name in file.keys():  # noqa: SIM118 - no mapping, though it looks like one
                self._files[name] = file
                self.shapes[name] = tuple(file.get_slice(name).get_shape())

    def __getitem__(self, name: str) -> Tensor:
        return self._files[name].get_tensor(name)


def check(folder: Path, config: ModelConfig) -> Tensors:
    """The tensors of a checkpoint, once its names and shapes are exactly those of `config`.

    To be called before an engine loads it: SGLang ends itself over a wrong shape. With tied
    embeddings an lm_head is let pass, which some checkpoints have anyway. Raises WrongCheckpoint.
    """
    found = Tensors(folder)
    due = {name: shape for weight in weights(config) for name, shape in weight.tensors}
    extra = set(found.shapes) - set(due) - ({"lm_head.weight"} if config.tied else set())
    wrong = [
        f"{name} must be {list(shape)}, is {list(found.shapes[name])}"
        for name, shape in due.items()
        if name in found.shapes and found.shapes[name] != shape
    ]
    problems = [
        *_told("missing", [name for name in due if name not in found.shapes]),
        *_told("unknown", sorted(extra)),
        *_told("of another shape", wrong),
    ]
    if problems:
        raise WrongCheckpoint(f"{folder} isn't of this model: {'; '.join(problems)}")
    return found


def write(
    folder: Path,
    config: ModelConfig,
    tensors: Iterable[tuple[str, Tensor]],
    *,
    dtype: str,
    companions: Path | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> int:
    """Writes a checkpoint; returns its bytes. Tokenizer files are copied from `companions`.

    Raises FileExistsError if the folder is there: a policy version is never written twice. Raises
    WrongCheckpoint, and leaves no folder, for tensors that aren't exactly those of `config`.
    """
    if folder.exists():
        raise FileExistsError(f"checkpoint {folder} is there already")
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = folder.with_name(f".{folder.name}.partial")
    with suppress(FileNotFoundError):  # left by a writer that was killed
        shutil.rmtree(partial)
    partial.mkdir()
    _write_tensors(partial, tensors, shard_bytes)
    (partial / "config.json").write_text(json.dumps(to_hf(config, dtype), indent=2))
    if companions is not None:
        for pattern in _COMPANIONS:
            for path in companions.glob(pattern):
                shutil.copy(path, partial)
    check(partial, config)
    _check_config(partial, config)
    for path in [*partial.iterdir(), partial]:
        sync(path)
    partial.rename(folder)
    sync(folder.parent)
    return sum(path.stat().st_size for path in folder.iterdir())


def _write_tensors(folder: Path, tensors: Iterable[tuple[str, Tensor]], shard_bytes: int) -> None:
    """One file, or several with an index, as transformers and SGLang read them."""
    shards: list[list[str]] = []
    total = 0
    for shard in _shards(tensors, shard_bytes):
        save_file(shard, folder / f"shard-{len(shards)}", metadata={"format": "pt"})
        shards.append(list(shard))
        total += sum(tensor.nbytes for tensor in shard.values())
    if len(shards) == 1:
        (folder / "shard-0").rename(folder / "model.safetensors")
        return
    names: dict[str, str] = {}
    for number, shard in enumerate(shards):
        file = f"model-{number + 1:05}-of-{len(shards):05}.safetensors"
        (folder / f"shard-{number}").rename(folder / file)
        names |= dict.fromkeys(shard, file)
    index: Mapping[str, Any] = {"metadata": {"total_size": total}, "weight_map": names}
    (folder / INDEX).write_text(json.dumps(index, indent=2))


def _tensor_files(folder: Path) -> list[Path]:
    """Those that the index names, if there is one: some folders have the weights a second time,
    under other names."""
    index = folder / INDEX
    if not index.exists():
        return [folder / "model.safetensors"]
    try:
        names = json.loads(index.read_text())["weight_map"].values()
        return [folder / name for name in sorted(set(names))]
    except (ValueError, KeyError, AttributeError) as error:
        raise WrongCheckpoint(f"{index} must be JSON with a weight_map: {error!r}") from error


def _shards(tensors: Iterable[tuple[str, Tensor]], shard_bytes: int) -> Iterator[dict[str, Tensor]]:
    shard: dict[str, Tensor] = {}
    held = 0
    for name, tensor in tensors:
        shard[name] = tensor.cpu().contiguous().clone()  # parts of one matrix share its memory
        held += tensor.nbytes
        if held >= shard_bytes:
            yield shard
            shard, held = {}, 0
    if shard:
        yield shard


def _check_config(folder: Path, config: ModelConfig) -> None:
    try:
        written = read_config(folder)
    except UnsupportedModel as error:
        raise WrongCheckpoint(str(error)) from error
    if written != config:
        raise WrongCheckpoint(f"{folder / 'config.json'} must read as {config}, got {written}")


def _told(what: str, names: list[str]) -> list[str]:
    if not names:
        return []
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return [f"{what}: {', '.join(names[:_NAMED])}{more}"]
