"""What a finding tells the reader to do: for their platform, with their values, and never something that destroys."""

from __future__ import annotations

import datetime
import os
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsdoctor.checks import CHECKS, select
from dsdoctor.diagnose import diagnose
from dsdoctor.errors import MatrixError
from dsdoctor.facts import (
    Container,
    EnvironmentVariable,
    FabricState,
    Gpu,
    Identity,
    Interpreter,
    KernelDriver,
    Origin,
    Package,
    Platform,
    Section,
    Sections,
    Snapshot,
    TorchBuild,
    Virtualization,
    Wsl,
    absent,
    known,
)
from dsdoctor.findings import Disruption, Remedy
from dsdoctor.matrix import Knowledge
from dsdoctor.remedies import (
    EVERY_CASE,
    HARMLESS,
    PLACEHOLDER,
    PlatformRow,
    PlatformTable,
    Remedies,
    RemedyRow,
    RemedyTable,
    identifier_of,
    reader_of,
    remedies_for,
    rows_of,
)

ROOT = Path(__file__).resolve().parents[1]
SHARED = Path(os.environ.get("DSDOCTOR_SHARED", ROOT.parent / "shared"))
KNOWLEDGE = Knowledge()


@cache
def tables() -> dict[str, RemedyTable]:
    stems = sorted(path.stem for path in (ROOT / "matrices/remedies").glob("*.yaml"))
    return {stem: KNOWLEDGE.load_table(f"remedies/{stem}", RemedyTable) for stem in stems if stem != "platforms"}


def platforms() -> Any:
    table: PlatformTable = KNOWLEDGE.load_table("remedies/platforms", PlatformTable)
    return table.platforms


def every_row() -> Iterator[tuple[str, RemedyRow]]:
    for table in tables().values():
        for name, rows in table.rows.items():
            for row in rows:
                yield name, row


def command_lines(row: RemedyRow) -> list[str]:
    return [*row.commands, *row.inspect, *([row.verify.command] if row.verify else [])]


def sections(**values: Any) -> Sections:
    return Sections(**{name: value if isinstance(value, Section) else known(value) for name, value in values.items()})


def ask(check_id: str, reader: Sections, case: str = "", **fill: str) -> tuple[Remedy, ...]:
    return remedies_for(check_id, reader, KNOWLEDGE.load_table)(case, **fill)


UBUNTU = Platform(os_id="ubuntu", os_id_like=("debian",), os_version="24.04", architecture="x86_64")
H100 = Gpu(index=0, name="NVIDIA H100 80GB HBM3", compute_capability="9.0", fabric=FabricState(state="completed"))

UBUNTU_HOST = sections(
    platform=UBUNTU,
    container=absent("not in a container"),
    wsl=absent("not WSL"),
    virtualization=absent("bare metal"),
    packages=(Package(name="torch", version="2.9.0", installer="pip"),),
    interpreter=Interpreter(path="/srv/venv/bin/python", chosen_by="VIRTUAL_ENV", version="3.12.4", kind="venv"),
    environment=(),
    kernel_driver=KernelDriver(version="570.86.15"),
    gpus=(H100,),
    identity=Identity(uid=1000),
)
ROCKY_GUEST_CONDA = sections(
    platform=Platform(os_id="rocky", os_id_like=("rhel", "centos", "fedora"), os_version="9.4"),
    container=absent("no"),
    wsl=absent("no"),
    virtualization=Virtualization(hypervisor="kvm"),
    packages=(Package(name="torch", version="2.9.0", installer="conda"),),
    interpreter=Interpreter(path="/opt/conda/bin/python", chosen_by="CONDA_PREFIX", version="3.11.9", kind="conda"),
    environment=(),
    gpus=(Gpu(index=0, name="NVIDIA A100-SXM4-80GB", compute_capability="8.0"),),
    identity=Identity(uid=0),
)
UBUNTU_POD = sections(
    platform=UBUNTU,
    container=Container(runtime="containerd", kubernetes=True),
    wsl=absent("no"),
    virtualization=absent("bare metal"),
    packages=(Package(name="torch", version="2.9.0", installer="pip"), Package(name="vllm", version="0.12.0", installer="pip")),
    interpreter=Interpreter(path="/usr/bin/python3", chosen_by="own", version="3.12.3", kind="system"),
    environment=(),
    gpus=(H100,),
    identity=Identity(uid=0),
)
WSL = sections(
    platform=UBUNTU,
    container=absent("no"),
    wsl=Wsl(version=2),
    virtualization=Virtualization(hypervisor="hyperv"),
    packages=(Package(name="torch", version="2.9.0", installer="uv"),),
    interpreter=Interpreter(path="/home/u/.venv/bin/python", chosen_by="VIRTUAL_ENV", version="3.12.3", kind="uv"),
    environment=(),
    gpus=(Gpu(index=0, name="NVIDIA GeForce RTX 4090", compute_capability="8.9"),),
    identity=Identity(uid=1000),
)
PASTED_TEXT = Sections()
READERS = {"host": UBUNTU_HOST, "guest": ROCKY_GUEST_CONDA, "pod": UBUNTU_POD, "wsl": WSL, "pasted": PASTED_TEXT}


# --- the tables -------------------------------------------------------------------------------------------------------


def test_every_check_of_the_vocabulary_that_has_facts_has_rows_here() -> None:
    facts, contract = SHARED / "facts/remedies.yaml", SHARED / "CONTRACT.md"
    if not facts.is_file() or not contract.is_file():
        pytest.skip("the collected facts are not here")
    collected = set(re.findall(r"^\s*(?:- )?check: (\S+)$", facts.read_text(), re.MULTILINE))
    vocabulary = set(re.findall(r"`([a-z]+\.[a-z0-9-]+)`", contract.read_text().partition("## Vocabulary")[2]))
    ours = {name for stem, table in tables().items() if stem != "procedures" for name in table.rows}
    assert len(collected) == 92
    assert collected <= ours
    assert vocabulary - ours == set()
    assert sum(len(rows) for stem, table in tables().items() if stem != "procedures" for rows in table.rows.values()) >= 317


def test_a_row_stands_in_the_file_of_its_area_and_names_only_what_exists() -> None:
    procedures = tables()["procedures"].rows
    for stem, table in tables().items():
        for name, rows in table.rows.items():
            assert stem == "procedures" or name.partition(".")[0] == stem
            for row in rows:
                assert row.platform in platforms(), name
                assert row.where in ("here", "host"), name
                assert bool(row.case) == (stem != "procedures"), name
                assert re.fullmatch(r"[a-z0-9-]*", row.case), row.case
                for used in (*row.uses, *row.then):
                    check_id, _, case = used.partition("/")
                    known_rows = procedures[used] if "." not in used else rows_of(check_id, KNOWLEDGE.load_table)
                    assert not case or case in {other.case for other in known_rows}, used
                assert row.commands or row.steps or row.uses or row.then, f"{name}: {row.summary}"


def test_every_platform_is_used_and_every_variant_has_its_platform() -> None:
    used = {row.platform for _, row in every_row()}
    assert set(platforms()) - used == set()
    for name, row in platforms().items():
        assert not row.variant_of or row.variant_of in platforms(), name


def test_each_row_says_how_to_see_that_it_helped_or_leaves_it_to_the_check() -> None:
    without = [name for name, row in every_row() if row.verify is None]
    assert sorted(set(without)) == ["capacity.load-time", "flashmla.requirements"]
    verify = ask("capacity.load-time", PASTED_TEXT)[0].verify
    assert verify is not None
    assert verify.command == "dsdoctor check --only capacity.load-time"


def test_every_placeholder_can_be_given_by_keyword() -> None:
    for name, row in every_row():
        for line in command_lines(row):
            for inside in re.findall(r"<([^<>|&]+)>", line):
                assert PLACEHOLDER.fullmatch(f"<{inside}>"), f"{name}: <{inside}>"
                assert identifier_of(PLACEHOLDER.fullmatch(f"<{inside}>")[1]).isidentifier()  # type: ignore[index]


# --- nothing that destroys --------------------------------------------------------------------------------------------

DESTRUCTIVE = {
    "deletes files": r"(^|[;&|(]\s*|sudo )rm\s+-|\brmdir\b|\bshred\b|\bmkfs|\bdd\s+if=",
    "removes packages of the system": r"\b(apt|apt-get|dnf|yum|zypper)\b[^|;&]*\b(purge|remove|autoremove|erase)\b|\brpm\s+-e|\bdpkg\s+(-r|-P|--purge)|(?<!command -v )nvidia-uninstall",
    "resets a GPU": r"nvidia-smi\b[^|;&]*(\s-r\b|--gpu-reset|-rmd)",
    "unloads a module": r"\brmmod\b|modprobe\s+(-\w*r|--remove)",
    "writes to the hardware": r"\bsetpci\b|\bmlxconfig\b|\bflint\b|\bnvflash\b|(>|tee)\s*/(sys|proc)/",
    "ends the machine": r"\breboot\b|\bshutdown\b|\bpoweroff\b|\binit\s+[06]\b|systemctl\s+(reboot|poweroff|kexec)",
    "ends processes": r"\bkill(all)?\b|\bpkill\b|\bfuser\b[^|;&]*-k|\bray stop\b|\bscancel\b",
    "takes MIG instances away": r"nvidia-smi\s+mig\b|\s-mig\s",
    "prunes": r"\bprune\b|--vacuum|\bdocker\s+(rm|rmi)\b",
    "deletes in the cluster": r"kubectl\s+delete\b(?!\s+pod\b)",
    "turns ECC off": r"nvidia-smi\b[^|;&]*-e\s*0",
}


@pytest.mark.parametrize("kind", DESTRUCTIVE)
def test_no_command_destroys(kind: str) -> None:
    found = [f"{name}: {command}" for name, row in every_row() for command in command_lines(row) if re.search(DESTRUCTIVE[kind], command)]
    assert found == []


def test_the_destructive_patterns_know_what_they_look_for() -> None:
    examples = {
        "deletes files": "sudo rm -rf /usr/lib/nvidia",
        "removes packages of the system": "sudo apt-get -y purge '*nvidia*'",
        "resets a GPU": "sudo nvidia-smi --id=0 --gpu-reset",
        "unloads a module": "sudo modprobe -r nvidia",
        "writes to the hardware": "sudo setpci -s 01:00.0 ECAP_ACS+6.w=0000",
        "ends the machine": "sudo systemctl reboot",
        "ends processes": "sudo fuser -v -k /dev/nvidia0",
        "takes MIG instances away": "sudo nvidia-smi mig -dci",
        "prunes": "docker system prune",
        "deletes in the cluster": "kubectl delete node n1",
        "turns ECC off": "sudo nvidia-smi -i 0 -e 0",
    }
    assert set(examples) == set(DESTRUCTIVE)
    assert all(re.search(DESTRUCTIVE[kind], example) for kind, example in examples.items())


def test_services_of_others_are_never_stopped_or_restarted() -> None:
    ours = {"nvidia-fabricmanager", "nvidia-persistenced", "nvidia-cdi-refresh.service", "<service>"}
    for name, row in every_row():
        for command in row.commands:
            for verb, services in re.findall(r"systemctl (?:--\S+ )?(stop|restart|disable --now|disable) ([^|;&]+)", command):
                assert set(services.split()) <= ours, f"{name}: {command}"
                assert verb not in ("stop", "disable --now") or row.drain, f"{name}: {command}"


def test_what_kills_running_work_asks_for_a_drained_node() -> None:
    for name, row in every_row():
        if row.disruption in (Disruption.RESET_GPU, Disruption.REBOOT) and row.platform not in ("vm", "gpu-operator"):
            assert row.drain or name == "rebuild-initramfs", f"{name}: {row.summary}"


WRONG_ADVICE = {
    "the package cuda to get nvcc": r"install\s+(-y\s+)?cuda(\s|$)",
    "hiding the version check of an image": r"NVIDIA_DISABLE_REQUIRE",
    "going back to cgroup v1": r"unified_cgroup_hierarchy",
    "a grep that never matches": r"lsmod.*grep.*nvidia-peermem",
    "the ACS override patch": r"pcie_acs_override",
    "GPUDirect across sockets": r"NCCL_NET_GDR_LEVEL=",
    "the C++ ABI flag by hand": r"_GLIBCXX_USE_CXX11_ABI=",
    "merged package indexes": r"--extra-index-url",
    "the ended conda channel": r"-c pytorch\b",
    "a compiler that nvcc refuses": r"-allow-unsupported-compiler",
    "preloading libraries": r"LD_PRELOAD=",
    "an emptied LD_LIBRARY_PATH": r"LD_LIBRARY_PATH=(\s|$|\"\")|unset LD_LIBRARY_PATH\b(?<!vars unset LD_LIBRARY_PATH)",
    "files that Windows owns": r"(ln|cp|mv)\s.*usr/lib/wsl",
    "PCI remove and rescan": r"/sys\S*/(rescan|remove)\b",
    "unlimited stacks": r"ulimit -s unlimited|stack=-1",
    "torch's own word on NCCL": r"torch\.cuda\.nccl\.version",
    "noaer": r"pci=noaer",
    "IPC_LOCK as a pod's whole answer": r"kubectl .*IPC_LOCK",
    "fixed GID index": r"export NCCL_IB_GID_INDEX=",
    "InfiniBand off": r"NCCL_IB_DISABLE=1",
    "FlashAttention 4 for any GPU": r"install flash-attn-4",
}


@pytest.mark.parametrize("kind", WRONG_ADVICE)
def test_no_wrong_advice_stands_as_a_command(kind: str) -> None:
    found = [f"{name}: {command}" for name, row in every_row() for command in command_lines(row) if re.search(WRONG_ADVICE[kind], command)]
    assert found == []


def test_a_workaround_is_called_one_and_never_comes_first() -> None:
    rows = rows_of("pcie.p2p-broken", KNOWLEDGE.load_table)
    numbers = [number for number, row in enumerate(rows) if any("NCCL_P2P_DISABLE=1" in command for command in row.commands)]
    assert numbers == [1]
    assert "afterwards" in rows[1].not_when
    everywhere = [name for name, row in every_row() if any("NCCL_P2P_DISABLE=1" in command for command in row.commands)]
    assert everywhere == ["pcie.p2p-broken"]


def test_fabric_manager_is_not_for_boards_without_nvswitch() -> None:
    rows = [row for row in rows_of("fabric.manager-not-running", KNOWLEDGE.load_table) if row.platform == "ubuntu-nvidia-repo"]
    assert rows
    assert all("PCIe cards" in row.not_when for row in rows)
    assert not [name for name, row in every_row() for c in row.commands if "install nvidia-fabric" in c and not name.startswith("fabric.")]


def test_extensions_are_never_rebuilt_from_a_cached_wheel() -> None:
    for row in rows_of("package.abi-mismatch", KNOWLEDGE.load_table):
        for command in row.commands:
            assert "<package>==" not in command or "--no-cache" in command


# --- commands are well formed -----------------------------------------------------------------------------------------


def test_bash_can_read_every_command() -> None:
    lines = [PLACEHOLDER.sub("x", line) for _, row in every_row() for line in command_lines(row)]
    assert len(lines) > 700
    script = "\n".join(f"line_{number}() {{\n{line}\n}}" for number, line in enumerate(lines))
    answer = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stderr) == (0, "")


def test_python_can_read_every_program() -> None:
    programs = [
        program.replace('\\"', '"')
        for _, row in every_row()
        for line in command_lines(row)
        for program in re.findall(r'python3? -c "((?:[^"\\]|\\.)*)"', PLACEHOLDER.sub("x", line))
    ]
    assert len(programs) > 60
    for program in programs:
        compile(program, "<remedy>", "exec")


# --- stories ----------------------------------------------------------------------------------------------------------


def test_ubuntu_host_with_pip_may_upgrade_the_driver_or_take_another_torch() -> None:
    upgrade, other_build, compat = ask("driver.too-old-for-cuda", UBUNTU_HOST, branch="580", cu="cu126", torch_version="2.9.0")
    assert upgrade.commands[:3] == (
        "sudo apt-get update",
        "sudo apt-get install linux-headers-$(uname -r)",
        "sudo apt-get install nvidia-driver-pinning-580",
    )
    assert (upgrade.disruption, upgrade.needs_root, upgrade.drain) == (Disruption.REBOOT, True, True)
    assert other_build.commands == ("pip install --force-reinstall torch==2.9.0+cu126 --index-url https://download.pytorch.org/whl/cu126",)
    assert "cuda-compat" in compat.commands[0]
    assert upgrade.verify is not None
    assert not any("Fabric" in remedy.when for remedy in (upgrade, other_build, compat))


def test_rhel_guest_with_conda_gets_dnf_and_conda_and_the_word_about_guests() -> None:
    (install,) = ask("driver.absent", ROCKY_GUEST_CONDA, "not-installed", branch="580")
    assert "dnf module enable nvidia-driver:580-open" in install.commands
    assert any("vGPU" in step for step in install.steps)
    assert not any(word in command for command in install.commands for word in ("sudo", "apt"))
    (cuda_build,) = ask("torch.cpu-only-build", ROCKY_GUEST_CONDA)
    assert cuda_build.commands == ("conda install -c conda-forge pytorch-gpu",)
    assert [remedy.summary for remedy in ask("pcie.iommu-translation", ROCKY_GUEST_CONDA)] == ["Nothing to change in the guest"]


def test_rhel_10_locks_the_version_instead_of_a_module_stream() -> None:
    reader = sections(platform=Platform(os_id="rhel", os_id_like=("fedora",), os_version="10.1"), container=absent("no"), wsl=absent("no"))
    (install,) = ask("driver.absent", reader, "not-installed", branch="580")
    assert "sudo dnf versionlock '*nvidia*580*'" in install.commands
    assert not any("module" in command for command in install.commands)


def test_in_a_pod_the_host_belongs_to_its_administrator() -> None:
    own, *others = ask("driver.too-old-for-cuda", UBUNTU_POD, branch="580", cu="cu126", torch_version="2.9.0")
    assert own.commands[0].startswith("pip install")
    handed = next(remedy for remedy in others if remedy.disruption is Disruption.REBOOT)
    assert handed.commands == ()
    assert "administrator of the host" in handed.when
    assert any(step.startswith("RHEL") and "nvidia-driver:580-open" in step for step in handed.steps), (
        "the distribution of the host is not known"
    )


def test_in_a_pod_root_needs_no_sudo_for_what_is_in_the_image() -> None:
    (compiler,) = ask("toolchain.no-compiler", UBUNTU_POD)
    assert compiler.commands == ("apt-get install build-essential",)
    memlock = ask("system.memlock-limited", UBUNTU_POD)
    assert len(memlock) == 1, "limits.d never reaches a pod"
    assert any("LimitMEMLOCK" in step and step.startswith("on the host: sudo") for step in memlock[0].steps)
    assert ask("system.shm-too-small", UBUNTU_POD)[0].summary == "Mount a memory volume at /dev/shm"


def test_in_wsl_nobody_installs_a_linux_driver() -> None:
    for check_id in ("driver.absent", "driver.too-old-for-cuda", "driver.library-mismatch", "driver.too-old-for-gpu", "driver.known-bad"):
        for remedy in ask(check_id, WSL, branch="580"):
            assert not any(re.search(r"nvidia-open|nvidia-driver|modprobe", command) for command in remedy.commands), check_id
    assert any("in Windows" in step for step in ask("driver.absent", WSL, "not-loaded")[0].steps)
    (build,) = ask("torch.cpu-only-build", WSL)
    assert build.commands[0].startswith("uv pip install")


def test_with_nothing_known_of_the_reader_each_remedy_says_whom_it_is_for() -> None:
    compilers = ask("toolchain.no-compiler", PASTED_TEXT)
    assert [remedy.when for remedy in compilers] == ["for Ubuntu or Debian", "for any dnf system", "for SLES / openSUSE Leap"]
    first = ask("driver.too-old-for-cuda", PASTED_TEXT, branch="580")[0]
    assert first.when == "you administer the node"
    assert [step.partition(":")[0] for step in first.steps[:3]] == [
        "Ubuntu, NVIDIA's own apt repository",
        "RHEL, Rocky, Alma, Oracle Linux 8 and 9",
        "RHEL, Rocky, Alma, Oracle Linux 10",
    ]


def test_fabric_manager_on_hopper_is_never_restarted_without_the_reset() -> None:
    (stopped,) = ask("fabric.manager-not-running", UBUNTU_HOST, "stopped")
    text = " | ".join(stopped.steps)
    assert text.index("stop the nvidia-fabricmanager") < text.index("reset all GPUs") < text.index("start the nvidia-fabricmanager")
    assert stopped.commands == ()
    assert (stopped.drain, stopped.disruption) == (True, Disruption.RESET_GPU)
    installed = ask("fabric.manager-version-mismatch", UBUNTU_HOST)
    assert "nvidia-fabricmanager=570.86.15-1ubuntu1" in installed[0].commands[0]
    assert any("reset all GPUs" in step for step in installed[0].steps), "what follows stands behind the row's own steps"
    assert any("nvidia-fabricmanager-570=570.86.15-1" in command for remedy in installed for command in remedy.commands)


def test_a_reset_is_told_in_words() -> None:
    (pending,) = ask("gpu.row-remap", UBUNTU_HOST, "pending", gpu="3")
    assert pending.commands == ()
    assert pending.steps[0].startswith("let the running job end")
    assert any("GPU reset" in step for step in pending.steps)
    assert pending.verify is not None
    assert pending.verify.command.startswith("nvidia-smi -q -d ROW_REMAPPER -i 3")


def test_the_argument_of_the_kernel_is_filled_in_the_procedure() -> None:
    passthrough = ask("pcie.iommu-translation", UBUNTU_HOST, "passthrough")[0]
    assert any("add iommu=pt to GRUB_CMDLINE_LINUX_DEFAULT" in step for step in passthrough.steps)


def test_a_driver_signed_by_canonical_comes_from_the_archive() -> None:
    from dataclasses import replace

    from dsdoctor.facts import DriverModuleFile

    module = DriverModuleFile(path="/lib/modules/nvidia.ko", signed=True, signer="Canonical Ltd. Kernel Module Signing")
    (install,) = ask("driver.absent", replace(UBUNTU_HOST, driver_module_file=known(module)), "not-installed", branch="580")
    assert "sudo ubuntu-drivers install --gpgpu nvidia:580-server-open" in install.commands


def test_a_slurm_job_in_an_enroot_container_is_answered_in_its_own_words() -> None:
    reader = sections(
        container=Container(runtime="enroot"), environment=(EnvironmentVariable(name="SLURM_JOB_ID", value="7"),), wsl=absent("no")
    )
    found = [remedy.summary for remedy in ask("container.no-gpu-access", reader, "not-requested", n="8")]
    assert found == ["Ask for GPUs in the job", "Make enroot inject the GPUs"]


def test_an_arch_reader_still_gets_something() -> None:
    reader = sections(platform=Platform(os_id="arch", os_version=""), container=absent("no"), wsl=absent("no"), packages=())
    assert ask("toolchain.no-python-headers", reader)
    assert ask("driver.open-module-required", reader)[0].when.endswith("driver installed from the .run file")


def test_an_engine_that_is_not_installed_is_not_spoken_of() -> None:
    assert any("vllm==" in command for remedy in ask("package.abi-mismatch", UBUNTU_POD) for command in remedy.commands)
    assert not any("vllm" in command for remedy in ask("package.abi-mismatch", UBUNTU_HOST) for command in remedy.commands)


# --- asking -----------------------------------------------------------------------------------------------------------


def test_a_case_or_check_that_does_not_exist_is_an_error_of_the_programmer() -> None:
    with pytest.raises(KeyError, match="no case 'typo': there are"):
        ask("driver.absent", UBUNTU_HOST, "typo")
    with pytest.raises(KeyError, match=r"driver\.no-such"):
        ask("driver.no-such", UBUNTU_HOST)
    with pytest.raises(KeyError):
        ask("driver.absent", UBUNTU_HOST, EVERY_CASE)
    with pytest.raises(MatrixError):
        ask("nonsense.check", UBUNTU_HOST)


def test_a_check_may_point_to_the_remedy_of_another() -> None:
    remedies = remedies_for("smoke.triton", UBUNTU_HOST, KNOWLEDGE.load_table)
    assert remedies.of("toolchain.no-compiler") == ask("toolchain.no-compiler", UBUNTU_HOST)
    assert remedies.of("driver.absent", "not-loaded")[0].commands == ("sudo modprobe -a nvidia nvidia_uvm",)


def test_nothing_is_read_before_a_check_asks_and_then_only_its_area() -> None:
    read: list[str] = []

    def load(stem: str, kind: Any) -> Any:
        read.append(stem)
        return KNOWLEDGE.load_table(stem, kind)

    remedies = remedies_for("cudnn.shadowed", UBUNTU_HOST, load)
    assert read == []
    remedies("variable", folder="/usr/local/cuda/lib64")
    assert set(read) == {"remedies/cudnn", "remedies/platforms"}


@pytest.mark.parametrize("reader", READERS)
def test_every_check_and_case_has_an_answer_for_every_reader(reader: str) -> None:
    for stem, table in tables().items():
        if stem == "procedures":
            continue
        for check_id, rows in table.rows.items():
            for case in {"", *(row.case for row in rows)} - {EVERY_CASE}:
                answer = ask(check_id, READERS[reader], case)
                assert 1 <= len(answer) <= 3, (check_id, case)
                assert all(remedy.summary and remedy.verify and remedy.sources for remedy in answer)
                if READERS[reader] is UBUNTU_POD:
                    handed_over = [remedy for remedy in answer if remedy.needs_root and "administrator" in remedy.when]
                    assert all(command.startswith("kubectl ") for remedy in handed_over for command in remedy.commands)


# --- placeholders -----------------------------------------------------------------------------------------------------


def test_placeholders_are_filled_by_keyword_and_stay_visible_without() -> None:
    (rebuild, *_) = ask("package.abi-mismatch", UBUNTU_HOST, "rebuild", package="flash-attn", version="2.8.3")
    assert rebuild.commands[0].endswith("--no-deps flash-attn==2.8.3")
    assert rebuild.verify is not None
    assert rebuild.verify.command == 'python -c "import torch, flash_attn"'
    (bare, *_) = ask("package.abi-mismatch", UBUNTU_HOST, "rebuild")
    assert bare.commands[0].endswith("<package>==<version>")
    (headers, *_) = ask("toolchain.no-python-headers", UBUNTU_HOST, "general")
    assert headers.commands == ("sudo apt-get install python3.12-dev",)


def test_a_hint_goes_with_its_placeholder() -> None:
    (wheels, *_) = ask("cudnn.version-mismatch", UBUNTU_HOST, "wheels", major="13")
    assert wheels.commands[0].endswith("nvidia-cudnn-cu13==<version: that torch asks for>")
    (wheels, *_) = ask("cudnn.version-mismatch", UBUNTU_HOST, "wheels", major="13", version="9.15.1.9")
    assert wheels.commands[0].endswith("nvidia-cudnn-cu13==9.15.1.9")


@pytest.mark.parametrize("value", ['x"; touch /tmp/owned; "', "$(id)", "`id`", "a b", "--index-url", "", "x\ny", "a|b", "*", "é"])
def test_a_value_that_the_shell_would_read_as_more_than_a_word_stays_out_of_commands(value: str) -> None:
    (variable, *_) = ask("cudnn.shadowed", UBUNTU_HOST, "variable", folder=value)
    assert 'grep -v "<folder>"' in variable.commands[0]


@given(st.text())
def test_no_value_ever_changes_the_shape_of_a_command(value: str) -> None:
    (wheels, *_) = ask("nccl.version-differs", UBUNTU_HOST, major="12", version=value)
    command = wheels.commands[0]
    assert command.endswith("nvidia-nccl-cu12==<version>") or (HARMLESS.fullmatch(value) and command.endswith(f"=={value}"))
    assert not set(command) & set("$`|;&\n\"'")


# --- who reads --------------------------------------------------------------------------------------------------------


def surely(reader: Sections) -> frozenset[str]:
    rows: dict[str, PlatformRow] = platforms()
    return reader_of(reader, rows).here.surely


def test_the_reader_is_known_from_the_facts() -> None:
    assert surely(UBUNTU_HOST) == {
        "any", "bare-metal", "apt", "ubuntu-nvidia-repo", "pip", "login", "host-login", "nvswitch-hopper+",
    }  # fmt: skip
    assert surely(UBUNTU_POD) >= {"kubernetes", "vllm"}
    assert not surely(UBUNTU_POD) & {"docker", "host-login", "sglang"}
    assert surely(PASTED_TEXT) == {"any", "login"}
    mint = sections(platform=Platform(os_id="linuxmint", os_id_like=("ubuntu", "debian"), os_version="22"))
    assert surely(mint) >= {"apt", "ubuntu-nvidia-repo"}
    assert "debian" not in surely(mint)
    rack = sections(gpus=(Gpu(index=0, name="NVIDIA GB200", compute_capability="10.0", fabric=FabricState(state="completed")),))
    assert "nvl-multinode" in surely(rack)
    assert not surely(rack) & {"nvswitch-hopper+", "nvswitch-blackwell"}
    amazon = sections(platform=Platform(os_id="amzn", os_id_like=("fedora",), os_version="2023"))
    assert "dnf" in surely(amazon)
    assert not surely(amazon) & {"rhel8-9", "rhel10"}


def test_a_pcie_card_is_not_taken_for_an_nvswitch_board() -> None:
    card = sections(gpus=(Gpu(index=0, name="NVIDIA H100 PCIe", compute_capability="9.0", fabric=FabricState(state="not-supported")),))
    assert not {name for name in surely(card) if name.startswith("nvswitch")}


def test_remedies_are_plain_values() -> None:
    remedies = remedies_for("driver.absent", UBUNTU_HOST, KNOWLEDGE.load_table)
    assert isinstance(remedies, Remedies)
    assert remedies("not-loaded") == remedies("not-loaded")


def test_what_is_only_missing_is_installed_beside_the_torch_that_is_there() -> None:
    """FlashAttention-4 put in with --no-deps: a new environment would be the greater step."""
    sections = Sections(
        packages=known(
            (
                Package(
                    name="nvidia-cutlass-dsl", version="4.8.1", requires=("nvidia-cutlass-dsl-libs-cu12==4.8.1", "cuda-bindings>=12.8")
                ),
                Package(name="torch", version="2.11.0+cu130"),
            )
        ),
        torch_build=known(TorchBuild(version="2.11.0+cu130", cuda="13.0")),
    )
    snapshot = Snapshot(
        schema="dsdoctor.snapshot/1", taken_at="2026-11-29T12:00:00Z", origin=Origin(kind="replay", label="a test"), sections=sections
    )
    report = diagnose(snapshot, Knowledge(), select(CHECKS, only=("package.pin-conflict",)), today=datetime.date(2026, 11, 29))
    (found,) = report.diagnosis
    assert found.remedies[0].commands[0].endswith("pip install nvidia-cutlass-dsl==4.8.1 torch==2.11.0")
