"""The filesystems probe: where the stack writes, what holds it, and that a dead mount does not silence the rest."""

import importlib
import json
import os
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsdoctor.facts import State
from dsdoctor.plain import to_plain
from dsdoctor.sources.host import Host
from dsdoctor.sources.live import read_sections
from dsdoctor.sources.probe import Scope

probe = importlib.import_module("dsdoctor.probes.filesystems")

MOUNTS = """\
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
24 27 0:6 / /dev rw,relatime - devtmpfs devtmpfs rw
25 24 0:23 / /dev/shm rw,nosuid,nodev - tmpfs shm rw,size=65536k
22 27 0:21 / /proc rw - proc proc rw
40 27 0:40 / /home rw,relatime - nfs4 server:/home rw,vers=4.2,hard
41 27 0:41 / /mnt/my\\040models ro,noexec - xfs /dev/md0 rw
"""


def plant(root, folders=(), files=()):
    for folder in folders:
        Path(f"{root}{folder}").mkdir(parents=True, exist_ok=True)
    for path, content in dict(files).items():
        file = Path(f"{root}{path}")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(root)


def examined(root, **environment):
    return probe.collect(Host(root=str(root), environment=environment), Scope(target=None))


def directories(root, **environment):
    return {directory.purpose: directory for directory in examined(root, **environment)["directories"].value}


@pytest.fixture
def node(tmp_path):
    plant(tmp_path, ["/dev/shm", "/tmp", "/home/a/.cache", "/mnt/my models", "/proc"], {"/proc/self/mountinfo": MOUNTS})
    return tmp_path


# --- shared memory ----------------------------------------------------------------------------------------------------


def test_shared_memory_of_a_pod(node):
    shared = examined(node)["shared_memory"]
    assert shared.value.path == "/dev/shm"
    assert shared.value.mount_options == ("rw", "nosuid", "nodev", "size=65536k")
    assert 0 < shared.value.free_bytes <= shared.value.total_bytes


def test_shared_memory_missing_is_absent_and_a_missing_dev_is_unreadable(tmp_path):
    assert examined(tmp_path)["shared_memory"].state is State.UNREADABLE
    plant(tmp_path, ["/dev"])
    assert examined(tmp_path)["shared_memory"].state is State.ABSENT


# --- mounts -----------------------------------------------------------------------------------------------------------


def test_mounts_tell_no_server_no_name_and_no_private_place(node):
    more = (
        "42 27 0:42 / /scratch rw - lustre 10.0.0.1@o2ib:/fs rw,flock,lazystatfs\n"
        "43 27 0:43 / /data rw - nfs4 10.0.0.2:/d rw,vers=4.2,clientaddr=10.0.0.9,addr=10.0.0.2\n"
        "44 27 0:44 / /data ro - nfs4 10.0.0.2:/d ro,username=alice,hard\n"
        "45 27 0:45 / /var/lib/docker/overlay2/x rw - overlay overlay rw\n"
        "46 27 0:46 / /sys/kernel/debug rw - debugfs none rw\n"
    )
    plant(node, files={"/proc/self/mountinfo": MOUNTS + more})
    section = examined(node)["mounts"]
    found = {mount.path: (mount.file_system, mount.options) for mount in section.value}
    assert sorted(found) == ["/", "/data", "/dev/shm", "/home", "/mnt/my models", "/scratch"]
    assert found["/scratch"] == ("lustre", ("rw", "flock", "lazystatfs"))
    assert found["/data"] == ("nfs4", ("ro", "hard")), "the last mount covers the others"
    assert "10.0.0" not in json.dumps(to_plain(section))
    (node / "proc/self/mountinfo").unlink()
    assert examined(node)["mounts"].state is State.UNREADABLE


# --- where directories are --------------------------------------------------------------------------------------------


def test_defaults(node):
    found = directories(node, HOME="/home/a", USER="a")
    assert {purpose: directory.path for purpose, directory in found.items()} == {
        "triton-cache": "/home/a/.triton/cache",
        "torch-extensions": "/home/a/.cache/torch_extensions",
        "torchinductor": "/tmp/torchinductor_a",
        "huggingface-cache": "/home/a/.cache/huggingface/hub",
        "vllm-cache": "/home/a/.cache/vllm",
        "sglang-cache": "/home/a/.cache/sglang",
        "deepgemm-cache": "/home/a/.deep_gemm",
        "deepep-cache": "/home/a/.deep_ep",
        "flashinfer-cache": "/home/a/.cache/flashinfer",
        "cuda-cache": "/home/a/.nv/ComputeCache",
        "tmp": "/tmp",
        "home": "/home/a",
    }
    assert {directory.configured_by for directory in found.values()} == {"", "HOME"}


@pytest.mark.parametrize(
    ("purpose", "environment", "path", "configured_by"),
    [
        ("triton-cache", {"TRITON_CACHE_DIR": "/a", "TRITON_HOME": "/b"}, "/a", "TRITON_CACHE_DIR"),
        ("triton-cache", {"TRITON_HOME": "/b"}, "/b/.triton/cache", "TRITON_HOME"),
        ("huggingface-cache", {"HF_HOME": "/models/", "XDG_CACHE_HOME": "/x"}, "/models/hub", "HF_HOME"),
        ("huggingface-cache", {"HF_HUB_CACHE": "/h", "HF_HOME": "/models"}, "/h", "HF_HUB_CACHE"),
        ("huggingface-cache", {"XDG_CACHE_HOME": "/x"}, "/x/huggingface/hub", "XDG_CACHE_HOME"),
        ("vllm-cache", {"XDG_CACHE_HOME": "/x"}, "/x/vllm", "XDG_CACHE_HOME"),
        ("deepgemm-cache", {"DG_JIT_CACHE_DIR": "/a:/b"}, "/a", "DG_JIT_CACHE_DIR"),
        ("flashinfer-cache", {"FLASHINFER_WORKSPACE_BASE": "/w"}, "/w/.cache/flashinfer", "FLASHINFER_WORKSPACE_BASE"),
        ("torchinductor", {"TMPDIR": "/scratch"}, "/scratch/torchinductor_a", "TMPDIR"),
        ("tmp", {"TMPDIR": "/scratch/../tmp"}, "/tmp", "TMPDIR"),
        ("cuda-cache", {"CUDA_CACHE_PATH": ""}, "/home/a/.nv/ComputeCache", ""),
        ("triton-cache", {"TRITON_CACHE_DIR": "~/t"}, "/home/a/t", "TRITON_CACHE_DIR"),
        ("triton-cache", {"TRITON_CACHE_DIR": "t", "PWD": "/job"}, "/job/t", "TRITON_CACHE_DIR"),
        ("tmp", {"TMPDIR": "/"}, "/", "TMPDIR"),
    ],
)
def test_variables_move_directories(node, purpose, environment, path, configured_by):
    found = directories(node, **{"HOME": "/home/a", "USER": "a", **environment})[purpose]
    assert (found.path, found.configured_by) == (path, configured_by)


def test_home_and_user_from_passwd(node):
    plant(
        node,
        files={
            "/etc/passwd": "root:x:0:0::/root:/bin/sh\nb:x:1001:1::/home/b:/bin/sh\n",
            "/proc/self/status": "Uid:\t1001\t1001\t1001\t1001\n",
        },
    )
    found = directories(node)
    assert found["home"].path == "/home/b"
    assert found["torchinductor"].path == "/tmp/torchinductor_b"


def test_unknown_home_and_user_leave_out_what_depends_on_them(node):
    assert set(directories(node)) == {"tmp"}


# --- what holds them --------------------------------------------------------------------------------------------------


def test_a_directory_that_does_not_exist_yet_is_judged_by_its_parent(node):
    found = directories(node, HOME="/home/a")["vllm-cache"]
    assert (found.exists, found.writable) == (False, True)
    assert (found.file_system, found.why) == ("nfs4", "")
    assert "hard" in found.mount_options
    assert found.free_bytes is not None
    assert found.total_bytes >= found.free_bytes


def test_read_only_and_noexec_mount(node):
    found = directories(node, DG_JIT_CACHE_DIR="/mnt/my models/cache")["deepgemm-cache"]
    assert (found.exists, found.writable, found.file_system) == (False, False, "xfs")
    assert {"ro", "noexec"} <= set(found.mount_options)


def test_no_directory_can_be_made_in_proc(node):
    """Recorded: Triton with TRITON_CACHE_DIR=/proc/nope fails although root 'may' write to /proc."""
    assert directories(node, TRITON_CACHE_DIR="/proc/nope")["triton-cache"].writable is False


def test_a_file_in_the_way(node):
    plant(node, files={"/home/a/.triton": "oops"})
    found = directories(node, HOME="/home/a")["triton-cache"]
    assert (found.exists, found.writable, found.why) == (False, False, "/home/a/.triton is not a directory")


def test_links_are_followed_to_the_mount_that_holds_them(node):
    os.symlink("/mnt/my models", f"{node}/home/a/.cache/vllm")
    found = directories(node, HOME="/home/a")["vllm-cache"]
    assert (found.path, found.file_system, found.writable) == ("/home/a/.cache/vllm", "xfs", False)


def test_layers_of_an_overlay_are_not_told(node):
    plant(node, files={"/proc/self/mountinfo": "1 0 0:1 / / rw - overlay overlay rw,lowerdir=/a:/b,upperdir=/u,workdir=/w,index=off\n"})
    found = directories(node)["tmp"]
    assert (found.file_system, found.mount_options) == ("overlay", ("rw", "index=off"))


def test_nothing_is_created(node):
    before = sorted(str(path) for path in node.rglob("*"))
    directories(node, HOME="/home/a", USER="a", XDG_CACHE_HOME="/x/y")
    assert sorted(str(path) for path in node.rglob("*")) == before


# --- mounts that do not answer ----------------------------------------------------------------------------------------


def test_a_question_without_answer_does_not_stop_the_others():
    never = threading.Event()
    try:
        assert probe.ask_all([lambda: "a", lambda: str(never.wait()), lambda: "c"], 0.1) == ["a", None, "c"]
    finally:
        never.set()


class DeadMount(Host):
    """A tree in which everything under /home hangs, as under a hard NFS mount whose server is gone."""

    released = threading.Event()

    def local(self, path):
        if path.startswith("/home"):
            self.released.wait()
        return super().local(path)


def test_dead_network_mount(node, monkeypatch):
    monkeypatch.setattr(probe, "ANSWER_WAIT_S", 0.2)
    try:
        host = DeadMount(root=str(node), environment={"HOME": "/home/a"})
        found = {directory.purpose: directory for directory in probe.collect(host, Scope(target=None))["directories"].value}
    finally:
        DeadMount.released.set()
    assert (found["tmp"].exists, found["tmp"].writable) == (True, True)
    home = found["home"]
    assert (home.writable, home.free_bytes, home.file_system) == (None, None, "nfs4")
    assert "no answer" in home.why


# --- nothing and nonsense ---------------------------------------------------------------------------------------------


def test_empty_tree(tmp_path):
    found = directories(tmp_path, HOME="/home/a")
    assert found["home"].exists is False
    assert (found["home"].file_system, found["home"].mount_options) == ("", ())


def test_root_that_is_not_there(tmp_path):
    assert examined(tmp_path / "nowhere", HOME="/home/a")["directories"].state is State.UNREADABLE


@settings(max_examples=25, deadline=None)
@given(st.binary(max_size=300), st.text(max_size=30), st.text(max_size=30))
def test_nonsense_is_survived(mountinfo, value, home):
    with tempfile.TemporaryDirectory() as root:
        plant(root, ["/dev/shm"], {"/proc/self/mountinfo": mountinfo, "/etc/passwd": mountinfo, "/proc/self/status": mountinfo})
        found = examined(root, HF_HOME=value, TMPDIR="/" + value, HOME=home)
    plain = json.loads(json.dumps({name: to_plain(section) for name, section in found.items()}))
    assert read_sections(plain).keys() == found.keys()


def test_undecodable_path_can_be_written(node):
    found = directories(node, TRITON_CACHE_DIR="/caf\udce9")["triton-cache"]
    assert found.path.encode() == b"/caf?"


# --- mountinfo --------------------------------------------------------------------------------------------------------

PATHS = st.lists(st.text(st.characters(min_codepoint=9, max_codepoint=126, exclude_characters="/"), min_size=1, max_size=6), max_size=4)


def escaped(text):
    return "".join(f"\\{ord(character):03o}" if character in " \t\n\\#" else character for character in text)


@given(PATHS, st.sampled_from([[], ["shared:1"], ["shared:1", "master:2"]]))
def test_mountinfo_reads_what_the_kernel_writes(parts, optional):
    path = "/" + "/".join(parts)
    line = " ".join(
        ["36", "35", "98:0", "/", escaped(path), "rw,noatime", *optional, "-", "ext3", escaped("/dev/my disk"), "rw,errors=continue"]
    )
    (mount,) = probe.parse_mountinfo(line + "\n")
    assert (mount.mount_point, mount.root, mount.file_system, mount.source) == (path, "/", "ext3", "/dev/my disk")
    assert mount.options == ("rw", "noatime", "errors=continue")


@given(st.text())
def test_mountinfo_takes_any_text(text):
    probe.parse_mountinfo(text)
    probe.parse_mountinfo(f"1 2 0:1 / {text} rw - {text} x rw")


def test_the_longest_and_latest_mount_holds_a_path():
    mounts = probe.parse_mountinfo(MOUNTS + "50 27 0:50 / /home rw - lustre scratch rw\n")
    assert probe.mount_of("/home/a", mounts).file_system == "lustre"
    assert probe.mount_of("/homework", mounts).file_system == "ext4"
    assert probe.mount_of("/mnt/my models", mounts).file_system == "xfs"
    assert probe.mount_of("/", mounts).file_system == "ext4"
    assert probe.mount_of("/a", ()) is None
