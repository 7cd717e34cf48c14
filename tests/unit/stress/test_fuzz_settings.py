"""Settings files with one thing wrong: the file, and the line or the key, is named."""

import re

from hypothesis import given
from hypothesis import strategies as st

from scrun.core.errors import SettingsError
from scrun.settings.file.load import load
from scrun.settings.oci_conf.parse import parse_oci_conf
from tests.harness.limits import limited
from tests.stress.fuzz.base import written
from tests.stress.fuzz.targets import TARGETS

SETTINGS = TARGETS["settings"].seeds[0].decode().splitlines()
OCI = TARGETS["oci-conf"].seeds[0].decode().splitlines()

VALUES = (
    "", "nan", "-inf", "inf", "1e999", "-1", "0", "true", "[]", "{}", '""', '"x"', '"/x"', "'/y'",
    '"\\u0000"', '"/a\\u0000b"', '"/a\x01b"', '"/a\rb"', '"/a\u2028b"', "1" * 5000,
    "0x" + "f" * 5000, "[" * 3000, "{a=" * 3000, "[" * 50 + "]" * 50, "2020-13-99", "25:00:00",
    "1979-05-27T07:32:00Z",
    "{" + "a." * 90 + "a=1}", "a." * 101, '"""\n/x"""', "'''", '"\\ud800"', "[1,\n2]", '"quiet"',
    '"' + "x" * 20000 + '"',
)  # fmt: skip
KEYS = (
    "root", "group", '"root"', "root.x", "x", "a." * 200 + "x", "idle_timeout", '"\\u0000"',
    "\x07", "r\u00f6\u00f6t", "", "-",
)  # fmt: skip


@given(st.data())
def test_one_line_of_scrun_toml(data: st.DataObject) -> None:
    number = data.draw(st.sampled_from([i for i, line in enumerate(SETTINGS) if " = " in line]))
    key, _, value = SETTINGS[number].partition(" = ")
    if data.draw(st.booleans()):
        key = data.draw(st.sampled_from(KEYS))
    else:
        value = data.draw(st.sampled_from(VALUES))
    line = f"{key} = {value}" if value else key
    text = "\n".join([*SETTINGS[:number], line, *SETTINGS[number + 1 :]])
    with limited():
        TARGETS["settings"].check(text.encode())
        try:
            parse_and_load(text)
        except SettingsError as error:
            message = str(error)
            place = re.search(r"\(at (line|end of document)|line \d+ has|not TOML: ", message)
            name = "\0" if "\\u" in key else key.strip('"').partition(".")[0]
            assert place or (key and name in message), (line, message)


def parse_and_load(text: str) -> None:
    path = written("scrun.toml", text.encode(errors="surrogatepass"))
    load({}, path)


@given(
    st.lists(st.sampled_from((*KEYS, *VALUES, *SETTINGS, "\n", "\r\n", "\r", " = ")), max_size=12)
)
def test_lines_of_scrun_toml(parts: list[str]) -> None:
    with limited():
        TARGETS["settings"].check("".join(parts).encode(errors="surrogatepass"))


ODD_LINES = (
    "RunTimeRun", "=", "a=b c", 'RunTimeKill="unfinished', "RunTimeCreate=x", "Unknown=1", "#",
    "CreateEnvFile=maybe", "DisableCleanup=2", "\\", "RunTimeRun=" + "a" * 100_000, "\0=\0",
    'RunTimeQuery="' + "$(" * 5000 + '"', "\u2028", "RunTimeQuery=%", "EnvExclude=(",
    "x" * 100_000, "RunTimeQuery=" + "kill -a " * 5000, "a " * 50_000,
    "RunTimeKill=" + " " * 50_000,
)  # fmt: skip


@given(st.integers(0, len(OCI) - 1), st.sampled_from(ODD_LINES), st.booleans())
def test_one_line_of_oci_conf(number: int, odd: str, instead: bool) -> None:
    text = "\n".join([*OCI[:number], odd, *OCI[number + instead :]])
    complaint = ""
    with limited():
        TARGETS["oci-conf"].check(text.encode())
        try:
            parse_oci_conf(text, "oci.conf")
        except SettingsError as error:
            complaint = str(error)
    place = r"oci\.conf(:\d+: |: RunTime\w+ (is missing|excludes))"
    assert not complaint or re.match(place, complaint), complaint
