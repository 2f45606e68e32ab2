"""Messages: what they hide, and what they do to a terminal."""

import pytest

from cleanba.runtime.messages import clock, printable, say, without_secrets


def test_clock():
    assert [clock(s) for s in (0.4, 61, 3_600 * 25 + 59.6)] == ["0:00:00", "0:01:01", "25:01:00"]


def test_control_characters_are_shown_not_obeyed(capsys):
    hostile = "\x1b]0;title\x07 \x9b31m \r\x7f \u202egnp.exe \udcff\x00"
    shown = r"\x1b]0;title\x07 \x9b31m \r\x7f \u202egnp.exe \udcff\x00"
    assert printable(hostile) == shown
    say(hostile)
    assert capsys.readouterr().err == shown + "\n"


def test_lines_and_other_alphabets_stay(capsys):
    text = "Traceback:\n  zum Glück 日本 🙂"
    say(text)
    assert capsys.readouterr().err == text + "\n"
    assert printable(text) == text.replace("\n", r"\n"), "a name in a message has one line"


@pytest.mark.parametrize(
    "name",
    ["WANDB_API_KEY", "HF_TOKEN", "PGPASSWORD", "CLEANBA_JOB_SECRET", "AWS_SECRET_ACCESS_KEY", "APIKEY"],
)
def test_values_of_secret_variables_are_hidden(monkeypatch, name):
    monkeypatch.setenv(name, "0123456789")
    assert without_secrets("got 0123456789.") == f"got (the value of {name})."


@pytest.mark.parametrize(
    "name", ["MONKEY_DIR", "TOKENIZERS_PARALLELISM", "KEYBOARD_LAYOUT", "SSH_KEY_PATH", "TOKEN_FILE"]
)
def test_other_variables_are_not(monkeypatch, name):
    monkeypatch.setenv(name, "/data/monkey")
    assert without_secrets("cannot read /data/monkey") == "cannot read /data/monkey"


def test_a_secret_that_begins_like_another_does_not_uncover_it(monkeypatch):
    monkeypatch.setenv("A_KEY", "01234567")
    monkeypatch.setenv("B_KEY", "0123456789")
    assert without_secrets("0123456789") == "(the value of B_KEY)"


def test_secrets_in_commands_and_addresses_are_hidden():
    assert without_secrets("HF_TOKEN=hf_x WANDB_MODE=offline python a.py --seed=1") == (
        "HF_TOKEN=*** WANDB_MODE=offline python a.py --seed=1"
    )
    assert without_secrets("--hub-token=abc --key-path=a") == "--hub-token=*** --key-path=a"
    assert without_secrets("--hub-token abc --key-path a") == "--hub-token *** --key-path a"
    assert without_secrets("--hub-token --seed 1") == "--hub-token --seed 1"
    assert without_secrets("HF_TOKEN='a b' A_KEY=\"c d\" x='e'") == "HF_TOKEN=*** A_KEY=*** x='e'"
    assert without_secrets("http://me:p@w@host/a") == "http://***@host/a"
    assert without_secrets("    params = init(key=key)") == "    params = init(key=key)"  # of a traceback
    assert (
        without_secrets("'https://ghp_x@host/a' http://me:pw@host:9/")
        == "'https://***@host/a' http://***@host:9/"
    )
