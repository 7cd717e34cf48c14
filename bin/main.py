"""Start scrun in the interpreter of its installation, which is bare if it has its own environment.

`-X prefix=DIR` is the installation, `-X called=NAME` the name by which scrun was called.
"""

import sys

options = sys._xoptions
version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
sys.path.insert(0, f"{options['prefix']}/lib/{version}/site-packages")
try:
    from scrun.main import main
except ModuleNotFoundError:
    if not sys.flags.no_site:
        raise
    import posix  # installed as editable: the site module finds it

    kept = [f"-X{name}={value}" for name, value in options.items()]
    posix.execv(sys.executable, [sys.executable, "-I", *kept, *sys.argv])

sys.argv[0] = options["called"]
main()
