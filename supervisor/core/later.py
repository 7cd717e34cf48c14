"""Modules that are imported when somebody uses them."""

import importlib
import sys
from collections.abc import Iterable
from types import ModuleType


def postpone(*names: str, packages: Iterable[str] = ()) -> None:
    """Import some modules, and packages, only when one of their attributes is first used.

    Those that are imported already stay. `importlib.util.LazyLoader` would not do: the next
    `import` statement imports it then.
    """
    for name in names:
        sys.modules.setdefault(name, _Later(name))
    for name in packages:
        sys.modules.setdefault(name, _PackageLater(name))


class _Later(ModuleType):
    """Stands for a module."""

    def __getattr__(self, attribute: str) -> object:
        if attribute.startswith("__"):  # the interpreter looks, and the next module can be asked
            raise AttributeError(f"module {self.__name__!r} is not imported yet")
        return getattr(self._imported(), attribute)

    def _imported(self) -> ModuleType:
        name = self.__name__
        if sys.modules.get(name) is self:
            del sys.modules[name]
        module = importlib.import_module(name)
        vars(self).update(vars(module))
        return module


class _PackageLater(_Later):
    """Stands for a package; importing a module in it needs its path."""

    def __getattr__(self, attribute: str) -> object:
        if attribute == "__path__":
            return self._imported().__path__
        return super().__getattr__(attribute)
