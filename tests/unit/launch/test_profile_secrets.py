"""Secrets in a profile and in the command of a job: found by name and by shape, refused, and never repeated."""

import json
import re
import stat

import pytest

from official_trainer import cli, config, files
from official_trainer.config import ConfigError
from official_trainer.errors import ExitCode
from official_trainer.launch import launches, targets
from official_trainer.launch.profile import Profile
from official_trainer.shown import secret_in, without_secrets
from tests.support.launch import engine as scripted
from tests.support.workspace import copy_workspace

SHAPES = {
    "a GitHub token": ("ghp_" + "aB3" * 12, "gho_" + "x9" * 18, "github_pat_11ABCDEFG0_" + "a1B2" * 10),
    "a GitLab token": ("glpat-" + "aB3-_" * 4, "glrt-" + "a1" * 12),
    "an npm token": ("npm_" + "aB3" * 12,),
    "a PyPI token": ("pypi-AgEIcHlwaS5vcmc" + "aB3-_" * 12,),
    "a Stripe key": ("sk_live_" + "a1B2" * 6, "rk_test_" + "a1B2" * 6),
    "a bearer token": ("Authorization: Bearer " + "a1.b-" * 8, "bearer  " + "a1B2" * 6 + "=="),
    "an AWS access key": ("AKIAIOSFODNN7EXAMPLE", "ASIAIOSFODNN7EXAMPLE"),
    "a Hugging Face token": ("hf_" + "aBcDeFgHiJkLmNoPqRsTuVwXyZaBcDeFgH",),
    "a Google API key": ("AIza" + "Sy0-_" * 7,),
    "a Slack token": ("xoxb-123456789012-abcdefghij", "xoxp-1234567890"),
    "an OpenAI key": ("sk-" + "aB3" * 16, "sk-proj-" + "a-B_3" * 10),
    "a JSON Web Token": ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJlLW9mLWl0",),
    "a private key": (
        "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBg\n-----END PRIVATE KEY-----",
        "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZX",
        '{"type": "service_account", "private_key": "-----BEGIN PRIVATE KEY-----\\nMI\\n-----END PRIVATE KEY-----\\n"}',
    ),
    "a password": ("postgresql://me:hush@host/db",),
}  # fmt: skip
VALUES = [(kind, value) for kind, values in SHAPES.items() for value in values]
HEX = "0123456789abcdef0123456789abcdef01234567"


def profile_with(**environ):
    return config.resolve(Profile(), params_overrides=[json.dumps({"environ": environ})]).config


@pytest.mark.parametrize(("kind", "value"), VALUES)
def test_a_value_with_the_shape_of_a_secret(kind, value):
    """N20: under any name, with what it looks like and the way to pass it, and without the value."""
    with pytest.raises(ConfigError) as refused:
        profile_with(GREETING=value)
    said = str(refused.value.problems[0].message)
    assert (
        f"the value of GREETING looks like {kind}, and the files of a job must not contain one; set it in the" in said
    )
    assert value not in said


@pytest.mark.parametrize(
    "name",
    [
        *("AWS_SECRET_ACCESS_KEY", "AWS_SECRET_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY_PROD", "AWS_ACCESS_KEY_ID"),
        *("GH_AUTH", "NPM_AUTH", "GOOGLE_APPLICATION_CREDENTIALS", "SERVICE_CREDENTIAL", "HF_TOKEN", "HF_TOKEN_2"),
        *(
            "WANDB_API_KEY",
            "apikey",
            "OPENAI_API_KEY_TEAM",
            "DB_PASSWORD",
            "SSH_PASSPHRASE",
            "CLIENT_SECRET",
            "GIT_PAT",
        ),
    ],
)
def test_a_name_of_a_secret(name):
    """N20: whatever its value is."""
    with pytest.raises(ConfigError, match=f"{name} looks like a secret, and the files of a job must not contain one"):
        profile_with(**{name: "/wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"})  # Base64, which may begin as a path does


def test_a_name_of_a_secret_in_a_container():
    """N20: a variable of a fragment, whose value has no shape."""
    profile = targets.get("kubernetes").profile_class(image="a/b:1")

    def containers(**variable):
        text = json.dumps({"pod": {"spec": {"containers": [{"name": "proxy", "env": [variable]}]}}})
        return config.resolve(profile, params_overrides=[text]).config

    with pytest.raises(ConfigError, match="pod: DB_PASSWORD looks like a secret, and the files of a job must not cont"):
        containers(name="DB_PASSWORD", value="hunter2")
    containers(name="DB_PASSWORD", value="/run/secrets/password")
    containers(name="DB_PASSWORD", valueFrom={"secretKeyRef": {"name": "db", "key": "password"}})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GOOGLE_APPLICATION_CREDENTIALS", "/var/run/secrets/google/credentials"),
        ("SSL_KEY", "../certs/server.key"),
        ("AWS_SHARED_CREDENTIALS_FILE", "/etc/aws"),
        ("TOKENIZERS_PARALLELISM", "false"),
        ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1"),
        ("MAX_TOKEN", "512"),
        ("KEY_COLUMN", "customer"),
        ("CODE_REVISION", HEX),
        ("MODEL", "sk-learn-pipeline-of-the-vision-team-1"),
        ("TASK", "risk-Assessment-2-of-the-vision-team"),
        ("DIGEST", HEX + HEX[:24]),
        ("PYTHONPATH", "/opt/AKIAB:/opt/hf_cache"),
        ("HEADER", "-----BEGIN CERTIFICATE-----"),
        ("RING", "the bearer of-the-ring-of-power"),
        ("PACKAGE", "npm_config_cache_of_the_vision_team_in_the_cluster"),
        ("URL", "https://example.com/a?b=c@d"),
        ("IMAGE", "registry.example.com/eyJ.v1.2"),
    ],
)
def test_what_is_no_secret(name, value):
    """N20: the path of a file with one, a switch, a number, a hash."""
    assert profile_with(**{name: value}).environ == {name: value}


@pytest.mark.parametrize("name", ["WANDB_KEY_OF_TEAM", "MY_WANDB", "wandb"])
def test_forty_digits_are_a_key_under_a_name_of_wandb(name):
    """N20: elsewhere they are the hash of a commit."""
    with pytest.raises(ConfigError, match=f"the value of {name} looks like a Weights & Biases key"):
        profile_with(**{name: HEX})
    assert secret_in(f"--set=task.wandb.key={HEX}") and not secret_in(f"--set=task.revision={HEX}")
    assert without_secrets(f"{name}='{HEX}'") == f"{name}='***'"


@pytest.mark.parametrize(("kind", "value"), VALUES)
def test_a_secret_is_hidden_where_text_is_kept(kind, value):
    """N20: in the record of a run, in its difference to the commit, in messages."""
    hidden = without_secrets(f"--set=a={value} b")
    assert secret_in(value) == kind and value not in hidden
    assert hidden.startswith("--set=a=") and "***" in hidden


@pytest.mark.parametrize(
    ("target", "text", "said"),
    [
        ("slurm", "setup: [[wandb, login, TOKEN]]", "setup: holds what looks like a GitHub token"),
        ("slurm", "sbatch: ['--export=A=TOKEN']", "sbatch: holds what looks like a GitHub token"),
        ("vertex", "labels: {a: TOKEN}", "labels: holds what looks like a GitHub token"),
        ("vertex", "spec: {tensorboard: {a: [TOKEN]}}", "spec: holds what looks like a GitHub token"),
        (
            "tpu",
            "source: 'git+https://me:hush@example.com/code.git@0123abc'",
            "source: holds what looks like a password",
        ),
    ],
)
def test_any_field_of_a_profile(target, text, said):
    """N20: the record of a job has them all."""
    with pytest.raises(ConfigError) as refused:
        config.resolve(
            targets.get(target).profile_class(), params_overrides=[text.replace("TOKEN", "ghp_" + "a1" * 18)]
        )
    assert said in str(refused.value) and "a1a1" not in str(refused.value)


@pytest.mark.parametrize("target", targets.own_names())
def test_how_a_target_gets_a_secret(target):
    """N20: in the message, because each scheduler has its own way."""
    kind = targets.get(target).profile_class
    with pytest.raises(ConfigError, match=f"HF_TOKEN looks like a secret, .*; {kind.secrets_go}"):
        config.resolve(kind(), params_overrides=["{environ: {HF_TOKEN: x}}"])
    assert kind.secrets_go != Profile.secrets_go


# The command, and the files.


@pytest.fixture
def with_targets(tmp_path, monkeypatch):
    """A workspace."""
    copy_workspace(tmp_path, "experiments")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    """A workspace with a target that runs nothing."""
    copy_workspace(tmp_path, "experiments")
    scripted.be_the_only_target(monkeypatch, tmp_path / "bin")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "flag", ["--params_override=task.init_checkpoint=", "--set=task.init_checkpoint=", "--gin_params=a.b = "]
)
@pytest.mark.parametrize("submits", [[], ["--submit"]])
def test_a_secret_in_the_command(workspace, capfd, flag, submits):
    """N20: the script and launch.json would have it; nothing is shown or written."""
    token = "ghp_" + "a1" * 18
    words = ["launch", "scripted", *submits, "--", "digits_mlp", "--model_dir=run", f"{flag}'{token}'"]
    assert cli.main(words) == ExitCode.CONFIG
    out, err = capfd.readouterr()
    assert "*** holds what looks like a GitHub token, which the files of the job would show; leave it out, and set" in (
        err.replace("'", "")
    )
    assert token not in out + err and not (workspace / "launches").exists()


SECRETS_IN_FILES = {
    "in_a_line": "environ: {DB_PASSWORD: hunter2hunter2, TF_CONFIG: x}",
    "first_of_a_section": "environ:\n  DB_PASSWORD: hunter2hunter2",
    "of_a_container": "pod: {spec: {containers: [{name: a, env: [{name: DB_PASSWORD, value: hunter2hunter2}]}]}}",
}


@pytest.mark.parametrize("text", SECRETS_IN_FILES.values(), ids=SECRETS_IN_FILES)
def test_a_secret_in_the_file_of_a_profile_is_not_shown(with_targets, capfd, text):
    """N20: the message has its place and its name, and no line of the file, which would have its value."""
    (with_targets / "profile.yaml").write_text(f"image: a/b:1\n{text}\n")
    words = ["launch", "kubernetes", "--profile=profile.yaml", "--", "digits_mlp", "--model_dir=gs://bucket/run"]
    assert cli.main(words) == ExitCode.CONFIG
    out, err = capfd.readouterr()
    assert re.search(r"profile\.yaml:\d: (environ|pod): DB_PASSWORD looks like a secret, and the files of a job", err)
    assert "hunter2" not in out + err


def test_a_password_in_a_directory_is_shown_by_no_line_of_the_message(with_targets, capfd):
    """N20: also not by the one that refuses it for another reason."""
    (with_targets / "profile.yaml").write_text("image: a/b:1\n")
    directory = "--model_dir=postgresql://me:hunter2@host/db"
    words = ["launch", "kubernetes", "--profile=profile.yaml", "--", "digits_mlp", directory]
    assert cli.main(words) == ExitCode.CONFIG
    out, err = capfd.readouterr()
    assert err.count("postgresql://me:***@host/db") == 2 and "pods do not share postgresql://" in err
    assert "hunter2" not in out + err


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_only_the_owner_reads_the_files_of_a_job(workspace, capfd, monkeypatch):
    """N20: also where they replace files that others can read, and are put back after a failure."""
    words = ["launch", "scripted", "--submit", "--", "digits_mlp", "--model_dir=run"]
    assert cli.main(words) == 0
    (folder,) = (workspace / "launches").iterdir()
    assert {path.name: mode_of(path) for path in folder.iterdir()} == {"job.txt": 0o600, "launch.json": 0o600}
    assert cli.main(["job", "cancel", folder.name]) == 0
    for path in folder.iterdir():
        path.chmod(0o644)
    assert cli.main(words) == 0
    assert {mode_of(path) for path in folder.iterdir()} == {0o600}
    assert cli.main(["job", "cancel", folder.name]) == 0
    monkeypatch.setenv("ENGINE_FAILS", "start")
    assert cli.main(words) == ExitCode.FAILED
    assert {mode_of(path) for path in folder.iterdir()} == {0o600}


def test_the_job_of_another_user(workspace, capfd, monkeypatch):
    """N20: in a workspace that several share: not listed, and a job in its place is refused with the reason."""
    words = ["launch", "scripted", "--submit", "--", "digits_mlp", "--model_dir=run"]
    assert cli.main(words) == 0
    read_text = files.read_text

    def denied(path):
        if path.endswith("launch.json"):
            raise PermissionError(13, "Permission denied", path)
        return read_text(path)

    monkeypatch.setattr(launches.files, "read_text", denied)
    capfd.readouterr()
    assert cli.main(["job", "list"]) == 0
    assert "no job was submitted from" in capfd.readouterr().err
    assert cli.main(words) == ExitCode.CONFIG
    assert "launch.json belongs to another user, who alone can manage this job" in capfd.readouterr().err
