"""Two writers of one directory: the second is refused, and told by whom. Holders are processes where it matters."""

import contextlib
import errno
import fcntl
import functools
import itertools
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from official_trainer import files, lock
from official_trainer.errors import ExitCode, UserError
from official_trainer.lock import LEASE_SECONDS, DirectoryLock, LockedError, lock_path, own_folder, remove_abandoned
from official_trainer.tracking.record import prepare_model_dir
from tests import ROOT
from tests.support.waiting import until

TIMEOUT_SECONDS = 60

HOLD = """
import sys
from official_trainer import lock
lock.RENEW_SECONDS = 3600.0
held = lock.DirectoryLock(sys.argv[1], description={"mode": "train_and_eval"})
held.acquire()
assert "tensorflow" not in sys.modules
"""
SAY_AND_WAIT = 'print("held", flush=True); sys.stdin.read()\n'


class FakeTime:
    """A clock that only `sleep` moves; `meanwhile` happens during each sleep."""

    def __init__(self, meanwhile=lambda: None):
        self.now = 0.0
        self._meanwhile = meanwhile

    def clock(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds
        self._meanwhile()


def make(directory, fake=None, **options):
    """Returns a lock that waits on the clock of `fake`, or on one of its own."""
    fake = fake or FakeTime()
    return DirectoryLock(directory, clock=fake.clock, sleep=fake.sleep, **options)


def read(directory, name="lock"):
    return json.loads(files.read_text(files.join(directory, f".{name}.json")))


def write(directory, **changes):
    """Writes what a holder on another machine would."""
    values = {"command": "python train.py", "host": "gpu-7", "pid": 41, "since": "2026-01-02T03:04:05+00:00"}
    values |= {"machine": "another", "owner": "theirs", "renewals": 3, **changes}
    path = files.join(directory, ".lock.json")
    with files.open_file(path + ".theirs", "w") as file:
        file.write(json.dumps(values))
    files.tf.io.gfile.rename(path + ".theirs", path, overwrite=True)


def write_raw(directory, raw):
    with files.open_file(files.join(directory, ".lock.json"), "wb") as file:
        file.write(raw)


def content(directory):
    return {name: files.read_bytes(files.join(directory, name)) for name in files.list_dir(directory)}


@contextlib.contextmanager
def process(script, directory):
    """A plain Python process that has printed its first line; it ends when its input does."""
    command = [sys.executable, "-c", script, str(directory)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        try:
            child.first_line = child.stdout.readline().strip()
            yield child
        finally:
            child.kill()


@pytest.fixture
def run_dir(model_dir):
    os.makedirs(model_dir)
    return model_dir


@pytest.fixture(params=["no flock", "flock of one machine", "url"])
def remote(request, run_dir, tmp_path, monkeypatch):
    """A directory on which the kernel knows of no locks of other processes."""
    if request.param == "no flock":
        no_flock(monkeypatch, errno.ENOLCK)
        return run_dir
    if request.param == "flock of one machine":  # as on a mount that does not share them
        machines = itertools.count()
        monkeypatch.setattr(fcntl, "flock", lambda descriptor, operation: None)
        monkeypatch.setattr(lock, "_machine", lambda: f"machine {next(machines)}")
        return run_dir
    url = f"ram://lock/{tmp_path.name}"
    files.make_dirs(url)
    return url


def no_flock(monkeypatch, number):
    def flock(descriptor, operation):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)


def test_a_lock_does_not_show_the_password_of_a_url(run_dir, monkeypatch):
    """N11: the file that says who holds it is read by others."""
    url, shown = "postgresql://me:se:c/r@et@host/db", "--storage=postgresql://me:***@host/db"
    monkeypatch.setattr(sys, "orig_argv", ["sweep", f"--storage={url}", "--parallel=2"])
    with make(run_dir):
        command = read(run_dir)["command"]
        assert shown in command and "secret" not in command and "et@" not in command
        assert shlex.split(command)[2] == "--parallel=2"


# On one machine.


def test_a_second_process_is_refused_and_told_by_whom(run_dir):
    """N11: the first goes on undisturbed."""
    with process(HOLD + SAY_AND_WAIT, run_dir) as holder:
        assert holder.first_line == "held"
        before = content(run_dir)
        with pytest.raises(LockedError) as refused:
            make(run_dir).acquire()
        assert not make(run_dir).try_acquire()
        assert content(run_dir) == before
    message = (
        rf"--model_dir={re.escape(run_dir)} is in use by pid {holder.pid} on {re.escape(socket.gethostname())}, "
        r"since \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00, command: \S*python\S* -c .* …, mode: train_and_eval\. "
        rf"Wait until it has ended, stop it with `kill {holder.pid}`, or name another --model_dir\."
    )
    assert re.fullmatch(message, str(refused.value)), refused.value
    assert isinstance(refused.value, UserError)
    assert isinstance(refused.value, RuntimeError)
    assert refused.value.exit_code == ExitCode.RETRY == 75


def test_the_lock_of_a_killed_process_is_taken_at_once(run_dir):
    with process(HOLD + SAY_AND_WAIT, run_dir) as holder:
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait(TIMEOUT_SECONDS)
    assert read(run_dir)["pid"] == holder.pid
    prepare_model_dir(run_dir, "digits")  # what is left does not make a fresh directory unusable
    fake = FakeTime()
    with make(run_dir, fake):
        assert read(run_dir)["pid"] == os.getpid()
    assert fake.now == 0


def test_a_holder_gets_a_second_to_write_its_name_or_to_end(run_dir):
    """N11: one that was killed while it started a program has left the lock to that one, until this begins."""
    for name, who in (
        (None, r"a process that left no readable name\. Wait until"),
        (b"{", r"a process that left no readable name\. Wait until"),
        ("killed", "pid 41 on gpu-7, "),
    ):
        if name is not None:
            write(run_dir, machine=lock._machine()) if name == "killed" else write_raw(run_dir, name)
        with open(os.path.join(run_dir, ".lock"), "w") as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            fake = FakeTime()
            with pytest.raises(LockedError, match=f"is in use by {who}"):
                make(run_dir, fake).acquire()
            assert 0 < fake.now <= 2
            with make(run_dir, FakeTime(meanwhile=other.close)):
                assert read(run_dir)["pid"] == os.getpid()


def test_what_a_killed_renewal_left_is_removed(run_dir):
    write(run_dir, machine=lock._machine())
    for name in (".lock.json.tmp-41-0a1b2c3d", ".lock.json.tmp-42-0a1b2c3d", "ckpt.tmp-41"):
        (Path(run_dir) / name).write_text("{")
    with make(run_dir):
        assert sorted(os.listdir(run_dir)) == [".lock", ".lock.json", "ckpt.tmp-41"]


def test_a_holder_says_who_it_is_and_leaves_no_name(run_dir):
    held = make(run_dir, description={"command": "train.py --x", "mode": "train"})
    with held:
        values = read(run_dir)
        assert values["host"] == socket.gethostname()
        assert (values["pid"], values["command"], values["mode"]) == (os.getpid(), "train.py --x", "train")
        assert values["renewals"] == 0
        garble = functools.partial(write_raw, run_dir, b"{")
        for number, before in enumerate((lambda: None, lambda: os.remove(lock_path(run_dir)), garble)):
            before()
            held.renew()  # the kernel's lock decides
            assert held.loss is None and read(run_dir) == {**values, "renewals": number + 1}
    assert content(run_dir) == {".lock": b""}
    prepare_model_dir(run_dir, "digits")
    held.release()
    held.renew()
    make(run_dir).release()
    assert content(run_dir) == {".lock": b""}
    with held:
        assert read(run_dir)["owner"] != values["owner"]


def test_locks_of_other_names_and_directories_are_others(run_dir, tmp_path):
    with make(run_dir), make(run_dir, name="continuous_eval"), make(str(tmp_path)):
        assert read(run_dir, "continuous_eval")["pid"] == os.getpid()
        assert sorted(os.listdir(run_dir)) == [".continuous_eval", ".continuous_eval.json", ".lock", ".lock.json"]


def test_many_processes_never_hold_it_at_once(run_dir):
    """Each of them holds a file that only one can make."""
    script = """
import os, sys
from official_trainer.lock import DirectoryLock, LockedError
print("ready", flush=True)
sys.stdin.readline()
held = 0
while held < 20:
    try:
        with DirectoryLock(sys.argv[1]):
            os.close(os.open(sys.argv[1] + "/inside", os.O_CREAT | os.O_EXCL))
            os.remove(sys.argv[1] + "/inside")
            held += 1
    except LockedError:
        pass
"""
    with contextlib.ExitStack() as stack:
        children = [stack.enter_context(process(script, run_dir)) for _ in range(4)]
        for child in children:
            child.stdin.write("\n")
            child.stdin.flush()
        assert [child.wait(TIMEOUT_SECONDS) for child in children] == [0] * 4


# Forks.


def test_a_forked_child_does_not_release_or_renew(run_dir):
    script = (
        HOLD
        + """
import os
from pathlib import Path
path = Path(sys.argv[1], ".lock.json")
before = path.read_text()
if (child := os.fork()) == 0:
    held.renew()
    held.release()
    held.__exit__(None, None, None)
    try:
        held.acquire()
    except lock.LockedError:
        os._exit(7)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert path.read_text() == before
held.renew()
assert path.read_text() != before
"""
        + SAY_AND_WAIT
    )
    with process(script, run_dir) as holder:
        assert holder.first_line == "held"
        with pytest.raises(LockedError, match=f"pid {holder.pid}"):
            make(run_dir).acquire()


def test_a_forked_child_does_not_keep_the_lock_of_a_dead_parent(run_dir):
    script = (
        HOLD
        + """
import os
if os.fork() == 0:
    print(os.getpid(), flush=True)
sys.stdin.read()
"""
    )
    with process(script, run_dir) as holder:
        with pytest.raises(LockedError):
            make(run_dir).acquire()
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait(TIMEOUT_SECONDS)
        os.kill(int(holder.first_line), 0)  # the child lives
        with make(run_dir):
            pass


# Leases: no flock, URLs.


def test_a_lease_that_is_not_renewed_is_taken_over(remote, caplog):
    """N11: after it was watched; one that is not as a holder writes it is the same to those who come."""
    for raw in (None, b"", b"{", b"null", b"[1]", b'{"owner": 1}', b"\xff\xfe\x00", b"[" * 100_000):
        write(remote) if raw is None else write_raw(remote, raw)
        fake = FakeTime()
        with make(remote, fake) as held:
            assert read(remote)["pid"] == os.getpid() and held.loss is None
        assert LEASE_SECONDS <= fake.now <= LEASE_SECONDS + 2
        who = "pid 41 on gpu-7, since 2026-01-02T03:04:05+00:00, command: python train.py"
        who = who if raw is None else "a process that left no readable name"
        assert caplog.messages[-1] == f"{remote} was in use by {who}: waiting 20 seconds to see whether it still is"


def test_a_holder_that_renews_its_lease_is_not_disturbed(remote):
    """N11: even if this process was stopped meanwhile and finds its time over."""
    message = r"in use by pid 41 on gpu-7, .*stop it with `kill 41` on gpu-7, or name another --model_dir"
    for late_seconds in (1, 19, 300):
        write(remote)
        fake = FakeTime()
        fake._meanwhile = lambda fake=fake, late=late_seconds: write(remote, renewals=4) if fake.now >= late else None
        if late_seconds > LEASE_SECONDS:
            fake.sleep = lambda seconds, fake=fake, late=late_seconds: FakeTime.sleep(fake, late)
        with pytest.raises(LockedError, match=message):
            make(remote, fake).acquire()
        assert read(remote)["renewals"] == 4
        assert fake.now == late_seconds


def test_a_lease_is_tried_again(remote):
    """N11: it is taken by the call that sees the holder silent for as long as a lease, and not before."""
    fake = FakeTime(meanwhile=lambda: pytest.fail("waited"))
    write(remote)
    mine = make(remote, fake)
    for _ in range(3):
        assert not mine.try_acquire()
        fake.now += LEASE_SECONDS - 1
        write(remote, renewals=fake.now)
    assert not mine.try_acquire()
    fake.now += LEASE_SECONDS
    assert mine.try_acquire()
    assert read(remote)["owner"] != "theirs"
    mine.release()
    assert mine.try_acquire()  # free: at once
    mine.release()


def test_a_lease_that_is_given_back_is_taken(remote):
    """N11: also while another process waits."""
    first = make(remote)
    first.acquire()
    fake = FakeTime(meanwhile=first.release)
    with make(remote, fake):
        assert fake.now < LEASE_SECONDS / 2
    assert not files.exists(files.join(remote, ".lock.json"))


def test_who_stops_waiting_holds_nothing(remote):
    def stop():
        raise KeyboardInterrupt

    write(remote)
    with pytest.raises(KeyboardInterrupt):
        make(remote, FakeTime(meanwhile=stop)).acquire()
    assert read(remote)["owner"] == "theirs"


def test_without_flock_a_silent_holder_loses_its_lease_and_notices_it(remote):
    old = make(remote, description={"command": "old"})
    old.acquire()
    with make(remote, FakeTime(), description={"command": "new"}) as new:
        old.renew()
        assert re.fullmatch(
            rf"--model_dir={remote} was taken over by pid {os.getpid()} on \S+, since \S+, command: new, because this "
            r"process did not renew its lock for 20 seconds, or because both started at the same time\. Start it again "
            r"after the other process has ended, or name another --model_dir\.",
            str(old.loss),
        )
        old.release()
        assert read(remote)["command"] == "new"
        new.renew()
        assert new.loss is None


def test_a_lease_without_a_name_is_lost(tmp_path):
    """N11: another holder may have come and gone while this process was stopped."""
    url = f"ram://lock/{tmp_path.name}"
    files.make_dirs(url)
    message = "was taken over by a process that left no readable name, because"
    with pytest.raises(LockedError, match=message), make(url) as held:
        files.remove(files.join(url, ".lock.json"))
        held.renew()
        held.check_held()


def test_two_who_write_at_once_find_out(remote, monkeypatch):
    write_text = files.write_text_atomically

    def write_and_be_overtaken(path, text, **options):
        write_text(path, text, **options)
        write(remote)

    monkeypatch.setattr(files, "write_text_atomically", write_and_be_overtaken)
    with pytest.raises(LockedError, match="pid 41 on gpu-7"):
        make(remote).acquire()
    assert read(remote)["owner"] == "theirs"


# Renewals.


def test_a_thread_renews_and_says_once_when_it_cannot(remote, monkeypatch, caplog):
    monkeypatch.setattr(lock, "RENEW_SECONDS", 0.001)

    def full(path, text, **options):
        raise OSError(errno.ENOSPC, "No space left on device", path)

    with DirectoryLock(remote) as held:
        until(lambda: read(remote)["renewals"] > 2)
        with monkeypatch.context() as patch:
            patch.setattr(files, "write_text_atomically", full)
            until(lambda: caplog.messages)
        before = read(remote)["renewals"]
        until(lambda: read(remote)["renewals"] > before)
        assert held.loss is None
        until(lambda: write(remote) or held.loss)  # a renewal under way may write over the first
    assert len(caplog.messages) == 1
    assert re.match(r".*/\.lock\.json could not be renewed: ", caplog.messages[0])
    assert read(remote)["owner"] == "theirs"


# What the file system does.


def test_a_release_that_cannot_remove_says_so_and_frees_the_lock(run_dir, monkeypatch, caplog):
    def fail(path):
        raise PermissionError(errno.EACCES, "Permission denied", path)

    with make(run_dir):
        monkeypatch.setattr(files, "remove", fail)
    assert re.fullmatch(r".*\.lock\.json could not be removed: .*Permission denied.*", caplog.messages[0])
    with make(run_dir):
        pass


def test_errors_of_the_file_system_surface_and_nothing_is_held(run_dir, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"missing/\.lock"):
        make(os.path.join(run_dir, "missing")).acquire()
    descriptors = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        no_flock(patch, errno.EIO)
        with pytest.raises(OSError, match="Input/output error"):
            make(run_dir).acquire()
    with monkeypatch.context() as patch:

        def full(path, content, **options):
            raise OSError(errno.ENOSPC, "No space left on device", path)

        patch.setattr(files, "write_text_atomically", full)
        with pytest.raises(OSError, match=r"No space left on device: .*\.lock\.json"):
            make(run_dir).acquire()
    assert len(os.listdir("/proc/self/fd")) == descriptors
    with make(run_dir):
        pass


def test_a_lock_file_that_is_a_link_is_refused(tmp_path):
    """N6: another user who can write to the directory does not decide which file is opened."""
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    (run_dir / ".lock").symlink_to(tmp_path / "victim")
    with pytest.raises(files.PathKindError, match=r"run/\.lock is a symbolic link, not a file\. Move it away"):
        make(str(run_dir)).acquire()
    assert os.listdir(tmp_path) == ["run"]


def test_a_holder_notices_that_its_directory_was_moved(tmp_path):
    """N6: exit code 2 and where it is now; nothing is written at the old place."""
    old, new = tmp_path / "old", tmp_path / "new"
    message = (
        rf"--model_dir={old} was moved while this process wrote to it, or this process has left its folder, such as by "
        rf"os\.chdir in your code: the directory is now at {new}\. What was saved is there\. Start it again with "
        rf"--model_dir={new}, and remove what may be at the old place by now\."
    )
    for is_replaced in (False, True):
        old.mkdir(exist_ok=True)
        with pytest.raises(LockedError, match=message) as caught, make(str(old)) as held:
            held.check_held()
            old.rename(new)
            if is_replaced:
                old.mkdir()
            assert re.fullmatch(message, str(held.loss))
            held.renew()
            (old / "missing").read_text()  # what a process that wants to go on would meet
        assert caught.value.exit_code == ExitCode.CONFIG  # a launcher does not begin another run at the old place
        assert isinstance(caught.value.__cause__, FileNotFoundError)
        assert not old.exists() or os.listdir(old) == []
        with make(str(new)):
            pass
        shutil.rmtree(new)


def test_a_holder_notices_that_its_directory_was_removed(tmp_path):
    (tmp_path / "run").mkdir()
    with make(str(tmp_path / "run")) as held:
        shutil.rmtree(tmp_path / "run")
        assert "the directory is removed, or now elsewhere" in str(held.loss)
    assert not (tmp_path / "run").exists()


# Folders of processes beside each other.


OWN = """
import sys
from official_trainer import lock
context = lock.own_folder(sys.argv[1], ".own-")
held = context.__enter__()
open(f"{held}/data", "w").close()
print(held, flush=True)
sys.stdin.read()
"""


def test_each_process_has_a_folder_of_its_own_and_leaves_nothing(run_dir):
    """N11: also after an error."""
    with own_folder(run_dir, ".own-") as one, own_folder(run_dir, ".own-") as other:
        assert one != other and sorted(map(os.path.basename, (one, other))) == files.list_dir(run_dir)
        (Path(one) / "deep").mkdir()
    assert files.list_dir(run_dir) == []
    with pytest.raises(ZeroDivisionError), own_folder(run_dir, ".own-"):
        1 / 0  # noqa: B018
    assert files.list_dir(run_dir) == []


def test_only_the_folders_of_killed_processes_are_removed(run_dir):
    """N11: that of one that lives stays, and what has another name, is a file or a link."""
    for name in (".own", ".owner", "mine"):
        (Path(run_dir) / name).mkdir()
    (Path(run_dir) / ".own-file").touch()
    (Path(run_dir) / ".own-link").symlink_to("mine")
    with process(OWN, run_dir) as killed, process(OWN, run_dir) as alive:
        os.kill(killed.pid, signal.SIGKILL)
        killed.wait(TIMEOUT_SECONDS)
        remove_abandoned(run_dir, r"\.own(-.*)?")
        there = [".own-file", ".own-link", ".owner", "mine", os.path.basename(alive.first_line)]
        assert files.list_dir(run_dir) == sorted(there)
        assert "data" in files.list_dir(alive.first_line) and files.list_dir(files.join(run_dir, "mine")) == []


def test_a_folder_that_is_taken_for_an_abandoned_one_is_made_again(run_dir, monkeypatch):
    """N11: another process may look before the lock of a new folder is held."""
    made = []

    def make_dirs(path):
        os.makedirs(path)
        made.append(path)
        if len(made) == 1:
            remove_abandoned(run_dir, r"\.own-.*")

    monkeypatch.setattr(files, "make_dirs", make_dirs)
    with own_folder(run_dir, ".own-") as folder:
        assert len(made) == 2 and folder == made[1] and not files.exists(made[0])


def test_a_file_that_was_removed_is_held_by_no_one(tmp_path, monkeypatch):
    """N11: of three that come together, the first removes its file, the second has opened it, the third its own."""
    first, second, third = (make(tmp_path) for _ in range(3))
    first.acquire()
    flock, called = fcntl.flock, []

    def handed_over(*arguments):
        if not called:
            called.append(arguments)
            os.remove(tmp_path / ".lock")
            first.release()
            third.acquire()
        return flock(*arguments)

    monkeypatch.setattr(fcntl, "flock", handed_over)
    with pytest.raises(LockedError, match="is in use by"):
        second.acquire()
    third.release()
    assert first.loss is None
