"""A stand-in for PyTorch that can be imported and asked for anything, and can compute nothing.

Accelerate imports torch everywhere; its configuration loader, launcher helpers and ParallelismConfig use none of it. Every name is a
class that can be called, subclassed, and asked for further names. Only for machines without the real one.
"""

import importlib.abc
import importlib.machinery
import sys
import types


class Anything(type):
    """The metaclass of stand-ins: attributes are stand-ins too, made once."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        made = stand_in(name)
        setattr(cls, name, made)
        return made

    def __or__(cls, other):  # annotations such as `torch.Tensor | None`
        return cls

    __ror__ = __or__


def stand_in(name):
    return Anything(
        name,
        (),
        {
            "__init__": lambda self, *_, **__: None,
            "__call__": lambda self, *args, **_: args[0] if args else self,
            "__getattr__": lambda self, key: _no_dunder(key),
        },
    )


def _no_dunder(key):
    if key.startswith("__"):
        raise AttributeError(key)
    return stand_in(key)


class StandInModule(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        made = stand_in(name)
        setattr(self, name, made)
        return made


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, fullname, path=None, target=None):
        if fullname.startswith("torch."):
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec):
        return StandInModule(spec.name)

    def exec_module(self, module):
        pass


def _absent(*_, **__):
    return False


def _install():
    sys.meta_path.append(Finder())
    old = sys.modules[__name__]
    module = StandInModule(__name__)
    module.__dict__.update({"__spec__": old.__spec__, "__path__": [], "__file__": old.__file__, "__version__": "2.4.0"})
    sys.modules[__name__] = module
    import torch.cuda
    import torch.distributed
    import torch.version

    torch.version.cuda = torch.version.hip = None
    torch.cuda.is_available = torch.distributed.is_available = torch.distributed.is_initialized = _absent
    torch.cuda.device_count = lambda: 0
    for name in ("cuda", "distributed", "version"):
        setattr(module, name, sys.modules["torch." + name])


_install()
