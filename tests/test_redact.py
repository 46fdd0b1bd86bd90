"""Redaction: nothing that names a person or a machine survives, and nothing that judgement needs is lost."""

from __future__ import annotations

import dataclasses
import datetime
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsdoctor.checks._check import check
from dsdoctor.diagnose import diagnose
from dsdoctor.facts import (
    Container,
    CudaLibrary,
    Directory,
    DriverLibrary,
    EnvironmentVariable,
    FabricState,
    Gpu,
    KernelLog,
    KernelLogLine,
    Libc,
    LoaderHit,
    MigInstance,
    Origin,
    Package,
    PciDevice,
    Sections,
    Snapshot,
    Xid,
    known,
    unreadable,
)
from dsdoctor.findings import Evidence, Finding, KnowledgeStamp, Severity
from dsdoctor.plain import to_plain
from dsdoctor.redact import SECRET, redact

UUID_0 = "GPU-8f2a1c3d-1111-2222-3333-44445555aaaa"
UUID_1 = "GPU-8f77aa01-1111-2222-3333-44445555bbbb"
MIG = "MIG-5c1d9a10-9999-5888-b777-666655554444"


def snapshot(**sections: Any) -> Snapshot:
    return Snapshot(
        schema="dsdoctor.snapshot/1",
        taken_at="2026-11-29T00:00:00Z",
        origin=Origin(kind="live", label="this machine"),
        sections=Sections(**{name: known(value) for name, value in sections.items()}),
    )


def variables(**values: str) -> tuple[EnvironmentVariable, ...]:
    return tuple(EnvironmentVariable(name=name, value=value) for name, value in values.items())


def environment(**values: str) -> dict[str, str]:
    """The variables as they read after redaction."""
    return {item.name: item.value for item in redact(snapshot(environment=variables(**values))).sections.environment.value or ()}


def log(text: str, **more: str) -> str:
    """A kernel log line after redaction, on a node with these variables."""
    found = redact(snapshot(environment=variables(**more), kernel_log=KernelLog(lines=(KernelLogLine(text=text),))))
    assert found.sections.kernel_log.value is not None
    return found.sections.kernel_log.value.lines[0].text


GPUS = (Gpu(index=1, uuid=UUID_1), Gpu(index=0, uuid=UUID_0, mig_instances=(MigInstance(index=0, uuid=MIG),)))


def visible_devices(value: str) -> tuple[str, list[str]]:
    """CUDA_VISIBLE_DEVICES and the UUIDs of GPUs 0 and 1 after redaction."""
    found = redact(snapshot(gpus=GPUS, environment=variables(CUDA_VISIBLE_DEVICES=value)))
    gpus = sorted(found.sections.gpus.value or (), key=lambda gpu: gpu.index)
    return (found.sections.environment.value or ())[0].value, [gpu.uuid for gpu in gpus]


# --- UUIDs ------------------------------------------------------------------------------------------------------------


def test_gpu_uuids_are_numbered_in_the_order_of_the_gpus() -> None:
    _, uuids = visible_devices("0")
    assert uuids == ["GPU-00000001-0000-0000-0000-000000000000", "GPU-00000003-0000-0000-0000-000000000000"]


def test_a_full_uuid_in_the_environment_still_names_its_gpu() -> None:
    value, uuids = visible_devices(f"{UUID_1},{UUID_0}")
    assert value.split(",") == [uuids[1], uuids[0]]


@pytest.mark.parametrize("written", ["GPU-8f77", "GPU-8f77aa01", "GPU-8f77aa01-1111"])
def test_a_short_uuid_still_matches_its_gpu_only(written: str) -> None:
    value, uuids = visible_devices(written)
    assert [uuid.startswith(value) for uuid in uuids] == [False, True]


def test_an_ambiguous_uuid_stays_ambiguous() -> None:
    value, uuids = visible_devices("GPU-8f")
    assert all(uuid.startswith(value) for uuid in uuids)


@pytest.mark.parametrize("written", ["GPU-dead", "GPU-deadbeef-1111-2222-3333-444455556666"])
def test_a_uuid_that_names_no_gpu_still_names_none(written: str) -> None:
    value, uuids = visible_devices(written)
    assert "dead" not in value
    assert not any(uuid.startswith(value) for uuid in uuids)


@pytest.mark.parametrize("written", [MIG, f"MIG-{UUID_0}/1/0"])
def test_mig_names_keep_their_form(written: str) -> None:
    value, uuids = visible_devices(written)
    assert value in ("MIG-00000002-0000-0000-0000-000000000000", f"MIG-{uuids[0]}/1/0")


def test_the_cluster_uuid_goes_but_tells_which_nodes_share_a_fabric() -> None:
    def cluster(uuid: str) -> str:
        gpu = Gpu(index=0, fabric=FabricState(state="completed", cluster_uuid=uuid))
        found = (redact(snapshot(gpus=(gpu,))).sections.gpus.value or ())[0].fabric
        return found.cluster_uuid if found else ""

    pseudonym = cluster("5a1d9a10-9999-4888-b777-666655554444")
    assert re.fullmatch("fabric-[0-9a-f]{12}", pseudonym)
    assert (
        cluster("5A1D9A10-9999-4888-b777-666655554444")
        == cluster(pseudonym)
        == pseudonym
        != cluster("5a1d9a10-9999-4888-b777-666655554445")
    )
    assert cluster("00000001-0000-0000-0000-000000000000") == "00000001-0000-0000-0000-000000000000"
    assert cluster("00000000-0000-0000-0000-000000000000") == "00000000-0000-0000-0000-000000000000"


# --- users and paths --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/home/alice/venv/bin/python", "/home/user/venv/bin/python"),
        ("/nfs/home/alice/venv", "/nfs/home/user/venv"),
        ("/Users/alice/venv", "/Users/user/venv"),
        ("/mnt/c/Users/Alice Smith/AppData", "/mnt/c/Users/user/AppData"),
        ("/root/.cache", "/root/.cache"),
        ("/usr/local/cuda/lib64", "/usr/local/cuda/lib64"),
        ("/tmp/torchinductor_alice/x", "/tmp/torchinductor_user/x"),
    ],
)
def test_paths(path: str, expected: str) -> None:
    assert environment(SOME_DIR=path)["SOME_DIR"] == expected


def test_a_user_name_goes_as_a_component_and_never_inside_another_word() -> None:
    found = environment(USER="alice", SCRATCH="/scratch/alice/malice/alices:/scratch/alice", NOTE="malice alicent")
    assert found == {"USER": "user", "SCRATCH": "/scratch/user/malice/alices:/scratch/user", "NOTE": "malice alicent"}


def test_a_user_called_cuda_does_not_break_the_toolkit() -> None:
    found = environment(USER="cuda", HOME="/home/cuda", LD_LIBRARY_PATH="/usr/local/cuda/lib64:/opt/cuda/lib:/home/cuda/lib")
    assert found == {"USER": "user", "HOME": "/home/user", "LD_LIBRARY_PATH": "/usr/local/cuda/lib64:/opt/cuda/lib:/home/user/lib"}


def test_root_is_nobodys_name_and_root_cause_stays_whole() -> None:
    assert environment(USER="root", HOME="/root", NOTE="root-cause") == {"USER": "root", "HOME": "/root", "NOTE": "root-cause"}


def test_two_users_stay_two() -> None:
    found = environment(A="/home/alice/x", B="/home/bob/x", C="/home/alice/y")
    assert (found["A"], found["B"], found["C"]) == ("/home/user/x", "/home/user2/x", "/home/user/y")


def test_a_home_elsewhere_is_learnt_from_home() -> None:
    assert environment(HOME="/u/alice", CACHE="/u/alice/.cache") == {"HOME": "/u/user", "CACHE": "/u/user/.cache"}


# --- hosts and addresses ----------------------------------------------------------------------------------------------


def test_a_host_has_one_pseudonym_everywhere() -> None:
    found = environment(HOSTNAME="gpu-a17.corp.example", MASTER_ADDR="gpu-a17", SLURM_NODELIST="gpu-a17,gpu-a18", NOTE="seen on gpu-a17")
    assert found == {"HOSTNAME": "host-1", "MASTER_ADDR": "host-1", "SLURM_NODELIST": "host-1,host-2", "NOTE": "seen on host-1"}


def test_the_nodes_in_slurms_short_form_are_known_one_by_one() -> None:
    assert "dgx03" not in log("peer dgx03 left", SLURM_JOB_NODELIST="dgx[01-04]")


@pytest.mark.parametrize("value", ["localhost", "127.0.0.1", "0.0.0.0", "auto", "0", "/etc/hosts", ""])
def test_what_names_no_host_stays(value: str) -> None:
    assert environment(MASTER_ADDR=value)["MASTER_ADDR"] == value


def test_rendezvous_addresses_keep_their_form() -> None:
    found = environment(
        NCCL_COMM_ID="10.1.2.3:4567", INIT_METHOD="tcp://gpu-a17:29500", VLLM_HOST_IP="fe80::1:2", NO_PROXY="localhost,10.0.0.0/8"
    )
    assert found == {
        "NCCL_COMM_ID": "192.0.2.1:4567",
        "INIT_METHOD": "tcp://host-1:29500",
        "VLLM_HOST_IP": "2001:db8::1",
        "NO_PROXY": "localhost,192.0.2.2/8",
    }


@pytest.mark.parametrize(
    "text",
    [
        "Nov 29 12:00:00 gpu-a17 kernel: NVRM: GPU lost",
        "2026-11-29T12:00:00.123456+00:00 gpu-a17 kernel: NVRM: GPU lost",
        "gpu-a17:1234:5678 [0] NCCL WARN gone; gpu-a17 again",
    ],
)
def test_the_host_of_a_log_line_goes(text: str) -> None:
    assert "a17" not in log(text)
    assert log(text).partition("host-1")[2] == text.replace("gpu-a17 again", "host-1 again").partition("gpu-a17")[2]


@pytest.mark.parametrize(
    "text",
    [
        "cuDNN version 9.19.0.56",
        "libcublas 13.0.0.1",
        "driver: 10.2.0.34",
        "libcudnn9-cuda-13=9.14.0.64-1",
        "libcudnn.so.9.19.0.56",
        "/opt/cudnn/9.19.0.56/lib",
        "nvidia-cudnn-cu13==9.19.0.56",
        "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",
        "0000:3b:00.0: link down at 12:34:56",
        "undefined symbol: at::native::add and c10::cuda::ce",
        "user@1000.service",
        "memcpy@GLIBC_2.14",
    ],
)
def test_versions_addresses_on_the_bus_and_symbols_stay(text: str) -> None:
    assert log(text) == text


def test_version_variables_and_version_fields_stay() -> None:
    assert environment(NV_LIBNPP_VERSION="13.0.1.2", NV_CUDNN_PACKAGE="libcudnn9=9.14.0.64") == {
        "NV_LIBNPP_VERSION": "13.0.1.2",
        "NV_CUDNN_PACKAGE": "libcudnn9=9.14.0.64",
    }
    node = snapshot(packages=(Package(name="nvidia-cudnn-cu13", version="10.2.0.34"),))
    assert redact(node).sections.packages == node.sections.packages


def test_hardware_addresses() -> None:
    device = PciDevice(address="0000:1a:00.0", kind="nic", interfaces=("enx0a1b2c3d4e5f", "mlx5_0"))
    found = redact(snapshot(pci_devices=(device,), kernel_log=KernelLog(lines=(KernelLogLine(text="eth0 0A:1B:2C:3D:4E:5F up"),))))
    assert (found.sections.pci_devices.value or ())[0].interfaces == ("enx000000000001", "mlx5_0")
    assert found.sections.kernel_log.value is not None
    assert found.sections.kernel_log.value.lines[0].text == "eth0 00:00:00:00:00:01 up"


# --- secrets ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HF_TOKEN", "hf_abcdefghijklmnopqrstuv"),
        ("AWS_SECRET_ACCESS_KEY", "/abc+def"),
        ("WANDB_API_KEY", "0123456789"),
        ("DB_PASSWORD", "123456"),
        ("NOTE", "use hf_abcdefghijklmnopqrstuv"),
        ("NOTE", "Authorization: Bearer abcdefghijklmnop"),
        ("HTTPS_PROXY", "http://alice:hunter22@proxy.corp.example:3128"),
        ("HTTPS_PROXY", "http://alice:p@ss@proxy.corp.example:3128"),
        ("NOTE", "https://x.example/f?token=abcdef&x=1"),
        ("NOTE", "-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----"),
        ("NOTE", "mail alice.smith@corp.example now"),
    ],
)
def test_secrets_go(name: str, value: str) -> None:
    redacted = environment(**{name: value})[name]
    for piece in ("abc", "0123", "123456", "alice", "hunter", "p@ss", "corp", "+def"):
        assert piece not in redacted


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TOKENIZERS_PARALLELISM", "false"),
        ("VLLM_MAX_TOKENS", "4096"),
        ("SGLANG_USE_KEY", "1"),
        ("PIP_INDEX", "https://download.pytorch.org/whl/cu130"),
    ],
)
def test_settings_that_only_sound_like_secrets_stay(name: str, value: str) -> None:
    assert environment(**{name: value})[name] == value


# --- the whole --------------------------------------------------------------------------------------------------------

word = st.text(alphabet="bdghjkmnpqrvwz", min_size=6, max_size=9)
number = st.integers(1, 254)


@st.composite
def planted(draw: Any) -> tuple[Snapshot, tuple[str, ...]]:
    """A node with identifying names in many places, and those names."""
    user, host, secret = f"u{draw(word)}", f"{draw(word)}-{draw(number)}", draw(word) * 3
    address = f"10.{draw(number)}.{draw(number)}.{draw(number)}"
    uuid = str(draw(st.uuids()))
    mac = ":".join(f"{draw(st.integers(16, 255)):02x}" for _ in range(6))
    gpu = Gpu(index=0, name="NVIDIA H200", uuid=f"GPU-{uuid}", fabric=FabricState(state="completed", cluster_uuid=uuid))
    node = snapshot(
        gpus=(gpu,),
        environment=variables(
            USER=user, HOME=f"/home/{user}", HOSTNAME=host, HF_TOKEN=secret, MASTER_ADDR=address, CUDA_VISIBLE_DEVICES=f"GPU-{uuid}",
            PYTHONPATH=f"/data/{user}/src:/home/{user}/lib", HTTP_PROXY=f"http://{user}:{secret}@{address}:80", POD_NAME=f"{host}-x",
        ),
        directories=(Directory(purpose="tmp", path=f"/tmp/torchinductor_{user}", exists=True),),
        container=Container(runtime="docker", evidence=f"/kubepods/pod{uuid.replace('-', '_')}"),
        kernel_log=KernelLog(
            xids=(Xid(code=79, pci_address="0000:3b:00.0", text=f"Nov 29 12:00:00 {host} kernel: NVRM: Xid 79, GPU-{uuid}"),),
            lines=(KernelLogLine(text=f"link to {address} ({mac}) on {host} lost, password={secret}", where=f"/home/{user}/dmesg.txt:3"),),
        ),
        loader_hits=(LoaderHit(family="nccl", soname="libnccl.so.2", path=f"/scratch/{user}/libnccl.so.2", via=f"LD_LIBRARY_PATH of {host}"),),
    )  # fmt: skip
    node = dataclasses.replace(
        node,
        origin=Origin(kind="triage", label=f"/home/{user}/paste.txt"),
        sections=dataclasses.replace(node.sections, memory=unreadable(f"/home/{user}/x: refused by {host} at {address}")),
    )
    return node, (user, host, secret, address, uuid, uuid.replace("-", "_"), mac)


@given(planted())
@settings(max_examples=80, deadline=None)
def test_nothing_planted_survives_and_twice_is_once(case: tuple[Snapshot, tuple[str, ...]]) -> None:
    node, secrets = case
    redacted = redact(node)
    text = json.dumps(to_plain(redacted))
    for secret in secrets:
        assert secret not in text
    assert redact(redacted) == redacted
    assert redacted.redacted


def shape(value: Any) -> Any:
    """Keys, types, numbers and lengths: everything but the texts."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items() if key != "redacted"}
    if isinstance(value, list):
        return [shape(item) for item in value]
    return "text" if isinstance(value, str) else value


@given(planted())
@settings(max_examples=50, deadline=None)
def test_structure_is_kept(case: tuple[Snapshot, tuple[str, ...]]) -> None:
    node, _ = case
    assert shape(to_plain(redact(node))) == shape(to_plain(node))


texts = st.text(alphabet="ab01.:/-_=@~ GPUhomexvso", max_size=60)


@given(texts, texts, texts)
@settings(max_examples=200, deadline=None)
def test_any_text_is_survived_and_twice_is_once(value: str, line: str, host: str) -> None:
    node = snapshot(
        environment=variables(X=value, HOSTNAME=host, USER=value, NO_PROXY=line),
        kernel_log=KernelLog(lines=(KernelLogLine(text=line),)),
        gpus=(Gpu(index=0, uuid=value),),
        driver_libraries=(DriverLibrary(soname="libcuda.so.1", path=line, kind="driver", found_via="search"),),
    )
    once = redact(node)
    assert redact(once) == once


@check("libc.old", Severity.ERROR)
def old_libc(libc: Libc, gpus: tuple[Gpu, ...], environment: tuple[EnvironmentVariable, ...]) -> Iterator[Finding]:
    """Judges what redaction must not touch: versions, and which GPU a variable names."""
    wanted = {item.name: item.value for item in environment}["CUDA_VISIBLE_DEVICES"]
    for gpu in gpus:
        if gpu.uuid.startswith(wanted) and libc.version == "2.28":
            yield Finding(
                subject=f"GPU {gpu.index}", summary=f"libc {libc.version}", evidence=(Evidence(where="libc.version", value="2.28"),)
            )


class NoKnowledge:
    def matrix(self, name: str) -> Any:
        return None

    def remedies(self, check_id: str, sections: Sections) -> Any:
        return None

    def fleet_words(self, check_id: str, case: str, severity: Severity) -> None:
        return None

    def stamp(self, today: datetime.date) -> KnowledgeStamp:
        return KnowledgeStamp(digest="0", date="2026-11-29")


def test_the_judgement_is_the_same() -> None:
    node = snapshot(gpus=GPUS, libc=Libc(family="glibc", version="2.28"), environment=variables(CUDA_VISIBLE_DEVICES="GPU-8f77"))
    today = datetime.date(2026, 11, 29)
    plain, redacted = (diagnose(item, NoKnowledge(), [old_libc], today=today) for item in (node, redact(node)))
    assert [item.subject for item in plain.diagnosis] == ["GPU 1"]
    assert redacted.diagnosis == plain.diagnosis


def test_names_the_caller_knows_are_taken_out_too() -> None:
    node = snapshot(kernel_log=KernelLog(lines=(KernelLogLine(text="kestrel-7: /data/alice/x"),)))
    found = redact(node, hosts=("kestrel-7.corp.example",), users=("alice",)).sections.kernel_log.value
    assert found is not None
    assert found.lines[0].text == "host-1: /data/user/x"


def test_library_facts_are_untouched() -> None:
    library = CudaLibrary(family="cudnn", soname="libcudnn.so.9", path="/opt/venv/lib/libcudnn.so.9", version="9.19.0.56", origin="wheel")
    assert redact(snapshot(cuda_libraries=(library,))).sections.cuda_libraries.value == (library,)


def test_secret_marker_stays_readable() -> None:
    assert environment(HF_TOKEN="x" * 20)["HF_TOKEN"] == SECRET
