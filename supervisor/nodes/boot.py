"""The command of the step that becomes the shim: the first lines that run on the node."""

from scrun.supervisor.children.processes import SYSTEM_PATH

LACKS_PYTHON = ("there is no Python on this node", "scrun needs Python 3.6 or newer on the node")
"""What is said where no shim will ever run, unless somebody installs something."""

BOOT = r"""
import sys
if sys.version_info < (3, 6):
    sys.exit("scrun needs Python 3.6 or newer on the node, this is %d.%d" % sys.version_info[:2])
import _frozen_importlib, _frozen_importlib_external, _signal, binascii, marshal, os, zlib

told = []
for name in "HUP", "INT", "QUIT", "USR1", "USR2":
    _signal.signal(getattr(_signal, "SIG" + name), lambda number, _: told.append(number))

class Modules:
    known = {}
    sizes = []

    def add(self, given):
        line, _, self.left = given.partition(b"\n")
        self.sizes = [int(size) for size in line.split()]
        self.rest = zlib.decompressobj()
        if not self.sizes:
            import json
            self.known.update(json.loads(self.rest.decompress(self.left).decode()))

    def find_spec(self, name, path=None, target=None):
        while self.sizes and name.startswith("scrun") and name not in self.known:
            part = self.rest.decompress(self.left, self.sizes.pop(0))
            self.left = self.rest.unconsumed_tail
            self.known.update(marshal.loads(part))
        if name in self.known:
            package = name + "." in " ".join(self.known)
            return _frozen_importlib.ModuleSpec(name, self, is_package=package)

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        code = self.known[module.__name__]
        if isinstance(code, str):
            code = compile(code, module.__name__, "exec", dont_inherit=True)
        exec(code, module.__dict__)

given = binascii.a2b_base64(os.environ.pop("SCRUN_SHIM", ""))
if not given:
    sys.exit("SCRUN_SHIM did not reach the node: does the site clear the environment?")
line, _, given = given.partition(b"\n")
python, length = line.decode().split()
magic = _frozen_importlib_external.MAGIC_NUMBER.hex()
modules = Modules()
modules.add(given[:int(length)] if python == magic else given[int(length):])
sys.meta_path.insert(0, modules)
from scrun.supervisor.shim.arrival import arrive
arrive(modules.add, magic, told)
"""

_SHELL = f"""PATH=${{PATH:-{SYSTEM_PATH}}}
export PATH
for python in python3 /usr/libexec/platform-python; do
    command -v "$python" >/dev/null 2>&1 && exec "$python" -I -S -X utf8 -c "$0"
done
echo "there is no Python on this node" >&2
exit 127"""


def boot_command() -> list[str]:
    """Return the command of the step that becomes the shim."""
    return ["/bin/sh", "-c", _SHELL, BOOT]
