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


KEYS = ["WANDB_API_KEY", "APIKEY", "AUTH_KEYS", "OPENAI_API_KEY_2", "AWS_ACCESS_KEY_ID", "STRIPE_KEY_LIVE"]
TOKENS = ["HF_TOKEN", "HF_TOKEN2", "HF_TOKEN_WRITE", "TOKEN_VALUE", "AUTH_TOKENS", "GITHUB_PAT"]
PASSWORDS = ["PGPASSWORD", "DB_PASSWORD_OLD", "SMTP_PASS", "MYSQL_PWD", "SSH_PASSPHRASE", "DOCKER_PASSWD"]
SECRETS = ["AWS_SECRET_ACCESS_KEY", "CLEANBA_JOB_SECRET", "VAULT_SECRET_ID", "CLIENTSECRET"]
PLACES = ["MONKEY_DIR", "SSH_KEY_PATH", "TOKEN_FILE", "PASSWORD_FILE", "SECRETS_DIR", "PWD", "OLDPWD"]
OTHERS = ["TOKENIZERS_PARALLELISM", "KEYBOARD_LAYOUT", "TOKENS_PER_BATCH", "TOKEN_LIMIT", "KEY_BINDINGS"]
OTHERS += ["PRIMARY_KEY_ID", "BYPASS", "COMPASS_URL"]


@pytest.mark.parametrize("name", [*KEYS, *TOKENS, *PASSWORDS, *SECRETS])
def test_values_of_secret_variables_are_hidden(monkeypatch, name):
    monkeypatch.setenv(name, "x123456789")
    assert without_secrets("got x123456789.") == f"got (the value of {name})."
    assert without_secrets(f"{name}=x1 python a.py") == f"{name}=*** python a.py"


@pytest.mark.parametrize("name", [*PLACES, *OTHERS])
def test_other_variables_are_not(monkeypatch, name):
    monkeypatch.setenv(name, "/data/monkey")
    assert without_secrets("cannot read /data/monkey") == "cannot read /data/monkey"
    assert without_secrets(f"{name}=/data python a.py") == f"{name}=/data python a.py"


@pytest.mark.parametrize(
    ("name", "hidden"),
    [("MAX_TOKENS", False), ("RANDOM_KEY", False), *((name, True) for name in PASSWORDS + SECRETS)],
)
def test_a_number_may_be_a_password_but_no_key(monkeypatch, name, hidden):
    monkeypatch.setenv(name, "10000000")
    shown = f"(the value of {name})" if hidden else "10000000"
    assert without_secrets("10000000 steps") == f"{shown} steps"
    flag = f"--{name.lower().replace('_', '-')}"
    for given in (f"{name}='512'", f"{flag}=512", f"{flag} 512"):
        assert ("512" not in without_secrets(f"{given} --seed 1")) == hidden


def test_a_secret_that_begins_like_another_does_not_uncover_it(monkeypatch):
    monkeypatch.setenv("A_KEY", "x1234567")
    monkeypatch.setenv("B_KEY", "x123456789")
    assert without_secrets("x123456789") == "(the value of B_KEY)"


def test_secrets_in_commands_and_addresses_are_hidden():
    assert without_secrets("HF_TOKEN=hf_x WANDB_MODE=offline python a.py --seed=1") == (
        "HF_TOKEN=*** WANDB_MODE=offline python a.py --seed=1"
    )
    assert without_secrets("--hub-token=abc --key-path=a") == "--hub-token=*** --key-path=a"
    assert without_secrets("--hub-token abc --key-path a") == "--hub-token *** --key-path a"
    assert without_secrets("--hub-token --seed 1") == "--hub-token --seed 1"
    assert without_secrets("--pwd /data --db-pwd abc") == "--pwd /data --db-pwd ***"
    assert without_secrets("HF_TOKEN='a b' A_KEY=\"c d\" x='e'") == "HF_TOKEN=*** A_KEY=*** x='e'"
    assert without_secrets("http://me:p@w@host/a") == "http://***@host/a"
    assert without_secrets("    params = init(key=key)") == "    params = init(key=key)"  # of a traceback
    assert (
        without_secrets("'https://ghp_x@host/a' http://me:pw@host:9/")
        == "'https://***@host/a' http://***@host:9/"
    )
