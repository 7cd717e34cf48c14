"""The command of the step that becomes the shim: the first lines that run on the node."""

from scrun.supervisor.children.processes import SYSTEM_PATH

NEEDS_SOURCES = "needs the sources of scrun's shim"
LACKS_PYTHON = ("there is no Python on this node", "scrun needs Python 3.6 or newer on the node")
"""What is said where no shim will ever run, unless somebody installs something."""

BOOT = r"""
import sys
if sys.version_info < (3, 6):
    sys.exit("scrun needs Python 3.6 or newer on the node, this is %d.%d" % sys.version_info[:2])
import _frozen_importlib, _frozen_importlib_external, binascii, marshal, os, zlib

names = sorted(name for name in os.environ if name.startswith("SCRUN_SHIM_"))
if not names:
    sys.exit("SCRUN_SHIM_0 did not come to the node: does the site clear the environment?")
given = binascii.a2b_base64("".join([os.environ.pop(name) for name in names]))
line, _, parts = given.partition(b"\n")
length, magic, *sizes = line.decode().split()
length = int(length)
modules = {}
if magic == _frozen_importlib_external.MAGIC_NUMBER.hex():
    rest = zlib.decompressobj()
    left = parts[length:]
    sizes = [int(size) for size in sizes] + [0]
elif not length:
    sys.exit("Python %d.%d NEEDS_SOURCES" % sys.version_info[:2])
else:
    import json
    modules = json.loads(zlib.decompress(parts[:length]).decode())
    sizes = []

class Modules:
    def find_spec(self, name, path=None, target=None):
        global left
        while sizes and name.startswith("scrun") and name not in modules:
            modules.update(marshal.loads(rest.decompress(left, sizes.pop(0))))
            left = rest.unconsumed_tail
        if name in modules:
            package = name + "." in " ".join(modules)
            return _frozen_importlib.ModuleSpec(name, self, is_package=package)

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        code = modules[module.__name__]
        if isinstance(code, str):
            code = compile(code, module.__name__, "exec", dont_inherit=True)
        exec(code, module.__dict__)

sys.meta_path.insert(0, Modules())
from scrun.supervisor.shim.main import main
main()
""".replace("NEEDS_SOURCES", NEEDS_SOURCES)

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
