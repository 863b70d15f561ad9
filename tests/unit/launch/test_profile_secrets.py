"""Secrets in the profile of a job: refused by name and by shape, and never repeated."""

import json
import re

import pytest

from official_trainer import cli, config
from official_trainer.config import ConfigError
from official_trainer.errors import ExitCode
from official_trainer.launch import targets
from official_trainer.launch.profile import Profile
from official_trainer.shown import secret_in, without_secrets
from tests.support.workspace import copy_workspace

TOKENS = (
    *("ghp_" + "aB3" * 12, "gho_" + "x9" * 18, "github_pat_11ABCDEFG0_" + "a1B2" * 10, "glpat-" + "aB3-_" * 4),
    *("glrt-" + "a1" * 12, "npm_" + "aB3" * 12, "pypi-AgEIcHlwaS5vcmc" + "aB3-_" * 12, "sk_live_" + "a1B2" * 6),
    *("rk_test_" + "a1B2" * 6, "Authorization: Bearer " + "a1.b-" * 8, "bearer  " + "a1B2" * 6 + "=="),
    *("AKIAIOSFODNN7EXAMPLE", "ASIAIOSFODNN7EXAMPLE", "hf_" + "aBcDeFgHiJkLmNoPqRsTuVwXyZaBcDeFgH"),
    *("AIza" + "Sy0-_" * 7, "xoxb-123456789012-abcdefghij", "xoxp-1234567890", "wandb_v1_" + "a1B2" * 12),
    *("sk-" + "aB3" * 16, "sk-proj-" + "a-B_3" * 10),
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJlLW9mLWl0",
    "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBg\n-----END PRIVATE KEY-----",
    "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZX",
    '{"type": "service_account", "private_key": "-----BEGIN PRIVATE KEY-----\\nMI\\n-----END PRIVATE KEY-----\\n"}',
)
VALUES = [*(("a token or a key", value) for value in TOKENS), ("a password", "postgresql://me:hush@host/db")]
HEX = "0123456789abcdef0123456789abcdef01234567"


def profile_with(**environ):
    return config.resolve(Profile(), params_overrides=[json.dumps({"environ": environ})]).config


def test_a_value_with_the_shape_of_a_secret():
    """N20: refused under any name, with what it looks like; hidden where text is kept, as in the record of a run."""
    for secret_type, value in VALUES:
        with pytest.raises(ConfigError) as refused:
            profile_with(GREETING=value)
        message = str(refused.value.problems[0].message)
        what = f"the value of GREETING looks like {secret_type}, and the files of a job must not contain one; set it in"
        assert what in message
        hidden = without_secrets(f"--set=a={value} b")
        assert secret_in(value) == secret_type and value not in hidden + message
        assert hidden.startswith("--set=a=") and "***" in hidden


NAMES = (
    *("AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "GH_AUTH", "GOOGLE_APPLICATION_CREDENTIALS", "SERVICE_CREDENTIAL"),
    *("HF_TOKEN", "HF_TOKEN_2", "WANDB_API_KEY", "apikey", "OPENAI_API_KEY_TEAM", "DB_PASSWORD", "CLIENT_SECRET"),
)


def test_a_name_of_a_secret():
    """N20: whatever its value is, but the path of a file with one, a switch or a number."""
    for name in NAMES:
        with pytest.raises(ConfigError, match=f"{name} looks like a secret, and the files of a job must not contain"):
            profile_with(**{name: "wJalrXUtnFEMI/K7MDENG"})
        for value in ("/var/run/secrets/it", "../certs/server.key", "false", "512"):
            assert profile_with(**{name: value}).environ == {name: value}
    for name in ("TOKENIZERS_PARALLELISM", "KEY_COLUMN", "PYTHONPATH"):
        assert profile_with(**{name: "a_value"})


NO_SECRETS = (
    *(HEX, HEX + HEX[:24], "sk-learn-pipeline-of-the-vision-team-1", "risk-Assessment-2-of-the-vision-team"),
    *("/opt/AKIAB:/opt/hf_cache", "-----BEGIN CERTIFICATE-----", "the bearer of-the-ring-of-power"),
    *("https://example.com/a?b=c@d", "registry.example.com/eyJ.v1.2", "npm_config_cache_of_the_vision_team"),
)
"""Hashes, paths, names."""


def test_what_has_no_shape_of_a_secret():
    """N20: forty digits are the hash of a commit, but under a name of wandb they are a key."""
    for value in NO_SECRETS:
        assert profile_with(MODEL=value).environ == {"MODEL": value}
    for name in ("WANDB_KEY_OF_TEAM", "MY_WANDB", "wandb"):
        with pytest.raises(ConfigError, match=f"the value of {name} looks like a token or a key"):
            profile_with(**{name: HEX})
        assert without_secrets(f"{name}='{HEX}'") == f"{name}='***'"
    assert secret_in(f"--set=task.wandb.key={HEX}") and not secret_in(f"--set=task.revision={HEX}")


def test_any_field_of_a_profile():
    """N20: the record of a job has them all."""
    for target, text, message in (
        ("slurm", "setup: [[wandb, login, TOKEN]]", "setup: holds what looks like a token or a key"),
        ("kubernetes", "pod: {spec: {containers: [{env: [{value: TOKEN}]}]}}", "pod: holds what looks like a token"),
        (
            "tpu",
            "source: 'git+https://me:hush@example.com/c.git@0123abc'",
            "source: holds what looks like a password",
        ),
    ):
        text = text.replace("TOKEN", "ghp_" + "a1" * 18)
        with pytest.raises(ConfigError) as refused:
            config.resolve(targets.get(target).profile_class(), params_overrides=[text])
        assert message in str(refused.value) and "a1a1" not in str(refused.value)


def test_how_a_target_gets_a_secret():
    """N20: in the message, because each scheduler has its own way."""
    for target in targets.names():
        profile_class = targets.get(target).profile_class
        with pytest.raises(ConfigError, match=f"HF_TOKEN looks like a secret, .*; {profile_class.secrets_go}"):
            config.resolve(profile_class(), params_overrides=["{environ: {HF_TOKEN: x}}"])
        assert profile_class.secrets_go != Profile.secrets_go


def test_a_secret_in_the_file_of_a_profile_is_not_shown(tmp_path, monkeypatch, capfd):
    """N20: the message has its place and its name, and no line of the file, which would have its value."""
    copy_workspace(tmp_path, "experiments")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "profile.yaml").write_text("image: a/b:1\nenviron: {DB_PASSWORD: hunter2hunter2, TF_CONFIG: x}\n")
    words = ["launch", "kubernetes", "--profile=profile.yaml", "--", "digits_mlp"]
    assert cli.main([*words, "--model_dir=gs://bucket/run"]) == ExitCode.CONFIG
    out, err = capfd.readouterr()
    assert re.search(r"profile\.yaml:\d: environ: DB_PASSWORD looks like a secret, and the files of a job", err)
    assert "hunter2" not in out + err
    (tmp_path / "profile.yaml").write_text("image: a/b:1\n")
    assert cli.main([*words, "--model_dir=postgresql://me:hunter2@host/db"]) == ExitCode.CONFIG
    out, err = capfd.readouterr()
    assert err.count("postgresql://me:***@host/db") == 2 and "pods do not share postgresql://" in err
    assert "hunter2" not in out + err
