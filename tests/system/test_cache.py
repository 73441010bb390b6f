"""Where files lie that may be made again."""

import os
import pwd
from pathlib import Path

import pytest

from vecenv.system.cache import cache_folder


def test_a_user_without_a_home_has_a_temporary_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def nobody(number: int) -> None:
        raise KeyError(number)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "vecenv"
    for name in ("XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    assert cache_folder() == tmp_path / f"vecenv-{os.getuid()}"
