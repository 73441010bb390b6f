"""No password of a URL and no token of the environment is told to people or files."""

import pytest

from vecenv.system.secrets import without_secrets
from vecenv.tasks.commands.cli import BAD_INPUT, main

TOKEN = "hf_abcdefgh12345678"


def test_passwords_and_tokens_are_left_out(monkeypatch, capsys):
    for name in ("HF_TOKEN", "openai_api_key", "DB_PASSWORD"):
        monkeypatch.setenv(name, TOKEN)
        assert without_secrets(f"x {TOKEN}, {TOKEN}!") == "x ***, ***!"
        monkeypatch.delenv(name)
    monkeypatch.setenv("SHORT_KEY", "a")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "falsehood")
    for plain in ("a falsehood", "http://a.b/c?d=e@f", "mail a@b.c", "https://huggingface.co/a/b"):
        assert without_secrets(plain) == plain
    assert without_secrets("at http://me:pass@word@a.b/c and https://k@d") == "at http://***@a.b/c and https://***@d"
    # A command's error and warnings.
    assert main(["data", "inspect", "https://me:word@host/bars.csv"]) == BAD_INPUT
    told = capsys.readouterr().err
    assert "word" not in told and "there is no such file" in told


def test_hubs_with_passwords_are_not_told(monkeypatch):
    hub = pytest.importorskip("vecenv.language.hub")
    monkeypatch.setattr(hub.constants, "ENDPOINT", "http://me:word@localhost:9")
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", False)
    with pytest.raises(ValueError, match=r"the hub http://\*\*\*@localhost:9 cannot be reached") as told:
        hub.found_model("nobody/nothing")
    assert "word" not in str(told.value)
