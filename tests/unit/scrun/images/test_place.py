"""Where the store of images is."""

import pytest

from scrun.core.errors import SettingsError
from scrun.images.store import image_of, store_path
from scrun.settings.file.load import ImageSettings, Settings, Staging


@pytest.mark.parametrize(
    ("settings", "path"),
    [
        (Settings(), "/home/alex/.cache/scrun/images"),
        (Settings(staging=Staging(scratch="/s/%u")), "/s/alex/images-1001"),
        (
            Settings(images=ImageSettings(store="/i/%U"), staging=Staging(scratch="/s/%u")),
            "/i/1001",
        ),
    ],
)
def test_where_it_is(settings: Settings, path: str) -> None:
    assert store_path(settings, uid=1001, user="alex", home="/home/alex") == path


def test_users_without_names_and_homes() -> None:
    with pytest.raises(SettingsError, match=r"\[images\] store = '/i/%u': uid 7 has no user name"):
        store_path(Settings(images=ImageSettings(store="/i/%u")), uid=7, user=None, home=None)
    with pytest.raises(SettingsError, match="no directory for the images of uid 7"):
        store_path(Settings(), uid=7, user=None, home=None)
    assert (
        store_path(Settings(images=ImageSettings(store="/i")), uid=7, user=None, home=None) == "/i"
    )


def test_another_bundle_is_no_image(tmp_path: object) -> None:
    assert image_of(str(tmp_path), "rootfs") is None
    assert image_of(str(tmp_path), "/etc") is None
