"""On the PYTHONPATH of a server without a GPU, so Python runs it in each of its processes first.

torchvision's wheel is linked to the CUDA build of torch. Beside a CPU build its operators can't be
loaded, and `import torchvision` fails where it describes two of them. Declaring these two is enough
for the import; SGLang imports torchvision and never calls it. Declared twice they end the process,
so this happens only where the library can't be loaded.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
OPERATORS = ("nms", "qnms")


class BeforeTorchvision(MetaPathFinder):
    """Declares the operators in the moment before torchvision is imported, once."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == "torchvision":
            sys.meta_path.remove(self)
            _declare_missing_operators()
        return None  # who finds modules otherwise finds this one too


def _declare_missing_operators() -> None:
    torch = importlib.import_module("torch")  # not above: most processes never need it
    spec = importlib.util.find_spec("torchvision")
    folders = (spec.submodule_search_locations if spec else None) or []
    try:
        for folder in folders:
            torch.ops.load_library(f"{folder}/_C.so")
    except OSError:
        for name in OPERATORS:
            torch.library.define(f"torchvision::{name}", SCHEMA)


sys.meta_path.insert(0, BeforeTorchvision())
