"""How policy versions reach the engines. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ledger.facts.lists import PauseMode, WeightMethod
from trainer.choices import settle


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishSettings:
    """Where versions go, and what becomes of an engine's requests meanwhile."""

    engines: tuple[str, ...]
    """URLs; each engine gets every version by itself, for a router passes no such calls on."""
    method: WeightMethod = WeightMethod.DISK
    """disk: engines load the exported folder, which they must see under the same path.
    distributed: rank 0 broadcasts to them; the folder is for those that are away then."""
    pause: PauseMode = PauseMode.RETRACT
    """none: running requests end first, under the old weights. abort: they end at once, and give
    back what was sampled. retract: they go on under the new weights, on a cache computed anew.
    in_place: they go on, on the cache of the old weights, which is kept for new requests, too."""
    keep: int = 2
    """Exported versions that are kept, the newest among them."""
    limit_s: float = 180.0
    """Most seconds of one call that brings an engine weights. A publication takes at most about
    twice that and three minutes; keep that below `trainer.ranks.COLLECTIVE_LIMIT`."""
    look_every_s: float = 1.0
    """Seconds between looks at each engine: how long one that is back may serve what it started
    with before it is paused and brought up to date."""
    engine_config: Path | None = None
    """Folder with the engines' config.json, for engines that name their model by a path or a name
    that is no folder here; null: they name a folder."""
    companions: Path | None = None
    """Folder whose tokenizer files are exported with each version; null: none are."""
    address: str = "127.0.0.1"
    """Under which engines reach rank 0, with `distributed`."""
    bucket_bytes: int = 512 * 2**20
    """With `distributed`: sent at once, and held by rank 0 and each engine beside the weights."""

    def __post_init__(self) -> None:
        settle(self, method=WeightMethod, pause=PauseMode)
        urls = tuple(url.rstrip("/") for url in self.engines)
        object.__setattr__(self, "engines", urls)
        if len(set(urls)) < len(urls):
            raise ValueError(f"engines must be named once each, got {list(urls)}")
        if self.method is WeightMethod.DISTRIBUTED and self.pause is PauseMode.NONE:
            raise ValueError(
                "pause must not be none with method distributed: requests that run between two"
                " parts of an update would sample from half of the weights"
            )
        for name in ("keep", "bucket_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("limit_s", "look_every_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0 seconds, got {getattr(self, name)}")

    @property
    def flush_cache(self) -> bool:
        """Whether engines forget their KV cache: with in_place they refuse, for requests use it."""
        return self.pause is not PauseMode.IN_PLACE
