"""Modules that are imported when somebody uses them."""

import importlib
import sys
from types import ModuleType


def postpone(*names: str) -> None:
    """Have some modules imported only when one of their attributes is first used.

    `importlib.util.LazyLoader` would not do: the next `import` statement imports it then.

    Args:
        names: Modules that are not packages. Those that are imported already stay.
    """
    for name in names:
        sys.modules.setdefault(name, _Later(name))


class _Later(ModuleType):
    """Stands for a module."""

    def __getattr__(self, attribute: str) -> object:
        name = self.__name__
        if attribute.startswith("__"):  # the interpreter looks, and the next module can be asked
            raise AttributeError(f"module {name!r} is not imported yet")
        if sys.modules.get(name) is self:
            del sys.modules[name]
        module = importlib.import_module(name)
        vars(self).update(vars(module))
        return getattr(module, attribute)
