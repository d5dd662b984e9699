"""Memory of this machine's GPUs, by torch where it is installed."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any


class GpuMemory:
    """Reads how much memory of the visible GPUs is used, by whichever process."""

    def __init__(self, cuda: Any) -> None:
        """Args:
        cuda: `torch.cuda`.
        """
        self._cuda = cuda
        self._devices = range(cuda.device_count())
        self._total = sum(cuda.get_device_properties(each).total_memory for each in self._devices)

    @classmethod
    def find(cls) -> GpuMemory | None:
        """The GPUs; None: there are none, or no torch to ask. Takes seconds, and blocks."""
        if importlib.util.find_spec("torch") is None:
            return None
        cuda: Any = importlib.import_module("torch").cuda
        return cls(cuda) if cuda.is_available() else None

    def read(self) -> tuple[int, int] | None:
        """Bytes used and in total; None: the driver doesn't say.

        It asks the driver's management interface, which needs no memory on the GPU of its own.
        """
        try:
            used = sum(self._cuda.device_memory_used(each) for each in self._devices)
        except (RuntimeError, ImportError):
            return None
        return used, self._total
