"""vLLM's interface for logits processors, where vLLM is not installed.

vLLM itself is some gigabytes and is not installed here. The stand-in has the classes of
its version-1 interface as it publishes them (`BatchUpdate`, `MoveDirectionality`,
`LogitsProcessor`). Where vLLM is installed its own classes are used; and those of the
file `interface.py` of an unpacked wheel, which needs nothing but torch, where the
variable ELIZA_VLLM names its folder.
"""

import importlib
import importlib.util
import os
import sys
from abc import ABC, abstractmethod
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from types import ModuleType

INSTALLED = importlib.util.find_spec("vllm") is not None
INTERFACE = "vllm.v1.sample.logits_processor"


def stand_in():
    class MoveDirectionality(Enum):
        UNIDIRECTIONAL = auto()
        SWAP = auto()

    class LogitsProcessor(ABC):
        @classmethod
        def validate_params(cls, sampling_params):
            return None

        @abstractmethod
        def __init__(self, vllm_config, device, is_pin_memory): ...

        @abstractmethod
        def apply(self, logits): ...

        @abstractmethod
        def is_argmax_invariant(self): ...

        @abstractmethod
        def update_state(self, batch_update): ...

    @dataclass(frozen=True)
    class BatchUpdate:
        batch_size: int
        removed: list
        added: list
        moved: list

    names = ["vllm", "vllm.v1", "vllm.v1.sample", INTERFACE]
    modules = {name: ModuleType(name) for name in names}
    for cls in (LogitsProcessor, MoveDirectionality, BatchUpdate):
        setattr(modules[names[-1]], cls.__name__, cls)
    return modules


def of_a_wheel(folder):
    """Put the classes of the real interface into the modules of the stand-in."""
    name = INTERFACE
    sys.modules["vllm"].SamplingParams = object
    path = Path(folder, *name.split("."), "interface.py")
    spec = importlib.util.spec_from_file_location(f"{name}.interface", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for cls in ("LogitsProcessor", "MoveDirectionality", "BatchUpdate"):
        setattr(sys.modules[name], cls, getattr(module, cls))


@contextmanager
def imported():
    """Give `eliza.hooks.vllm`, over the classes that there are."""
    if INSTALLED:
        yield importlib.import_module("eliza.hooks.vllm")
        return
    before = dict(sys.modules)
    sys.modules.update(stand_in())
    try:
        if "ELIZA_VLLM" in os.environ:
            of_a_wheel(os.environ["ELIZA_VLLM"])
        yield importlib.import_module("eliza.hooks.vllm")
    finally:
        for name in set(sys.modules) - set(before):
            if name.startswith(("vllm", "eliza.hooks.vllm")):
                del sys.modules[name]
