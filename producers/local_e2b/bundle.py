"""What a sandbox's first process runs: the source of `inside/`, over an inherited descriptor.

Nothing of our own installation has to be readable for the sandbox's user or bound into it.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path

INSIDE = Path(__file__).with_name("inside")
MODULES = ("files", "agent")
"""In the order in which they import one another."""

LOADER = """\
import os, sys, types
package = types.ModuleType("inside")
package.__path__ = []
sys.modules["inside"] = package
for name, source in {sources!r}.items():
    module = types.ModuleType("inside." + name)
    module.__package__ = "inside"
    sys.modules[module.__name__] = module
    setattr(package, name, module)
    exec(compile(source, name + ".py", "exec"), module.__dict__)
os.close(bundle)
package.agent.main(channel)
"""


@functools.cache
def bundle_fd() -> int:
    """A file in memory with the program; open for the life of the server."""
    sources = {name: (INSIDE / f"{name}.py").read_text() for name in MODULES}
    fd = os.memfd_create("rollbook-inside")
    os.write(fd, LOADER.format(sources=sources).encode())
    return fd


def start_line(python: str, bundle: int, channel: int) -> list[str]:
    """The command of the first process, which inherits both descriptors."""
    size = os.fstat(bundle).st_size
    names = f"dict(bundle={bundle}, channel={channel})"
    program = f"import os; exec(os.pread({bundle}, {size}, 0), {names})"
    return [python, "-I", "-S", "-c", program]
