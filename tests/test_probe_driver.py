"""The driver probe, on trees of machines: what is loaded, what is on disk, what the loader would take."""

from __future__ import annotations

import importlib
import os
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsdoctor.facts import Section, State
from dsdoctor.sources import loader
from dsdoctor.sources.child import Ended
from dsdoctor.sources.host import Host
from dsdoctor.sources.probe import Scope, Target

SHARED = Path(os.environ.get("DSDOCTOR_SHARED", Path(__file__).resolve().parents[1].parent / "shared"))
driver = importlib.import_module("dsdoctor.probes.driver")

SCOPE = Scope(target=None)
KERNEL = "6.8.0-40-generic"
OPEN_580 = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (dvs-builder@U22)  Sun Jul 20\n"
CLOSED_570 = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.133.20  Sun Mar 23 02:10:31 UTC 2025\nGCC version:  gcc 12\n"
X86_64_ELF = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HH", 3, 62) + bytes(44)
I386_ELF = b"\x7fELF\x01\x01\x01" + bytes(9) + struct.pack("<HH", 3, 3) + bytes(44)


def plant(root: Path, files: dict[str, bytes | str], links: dict[str, str] | None = None) -> Path:
    for name, content in files.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    for name, target in (links or {}).items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)
    return root


def plant_library(root: Path, directory: str, soname: str, version: str, size: int = 300_000) -> None:
    real = f"{soname.rpartition('.')[0]}.{version}"
    plant(root, {f"{directory}/{real}": X86_64_ELF + bytes(size)}, {f"{directory}/{soname}": real})


def make_cache(entries: list[tuple[str, str]], flags: int = 0x0303) -> bytes:
    """A cache as ldconfig writes it."""
    strings = bytearray()
    table = bytearray()
    base = 48 + 24 * len(entries)
    for soname, path in entries:
        key = base + len(strings)
        strings += soname.encode() + b"\0"
        value = base + len(strings)
        strings += path.encode() + b"\0"
        table += struct.pack("<iIIIQ", flags, key, value, 0, 0)
    return loader.CACHE_MAGIC + struct.pack("<IIB3xI12x", len(entries), len(strings), 2, 0) + bytes(table) + bytes(strings)


def bare_metal(root: Path) -> Path:
    return plant(
        root,
        {
            "/proc/sys/kernel/osrelease": KERNEL + "\n",
            "/proc/modules": "nvidia_uvm 1 0 - Live 0x0 (O)\nnvidia 9 1 nvidia_uvm, Live 0x0 (O)\next4 1 1 - Live 0x0\nmlx5_core 1 1 - Live 0x0\n",
            "/lib64/ld-linux-x86-64.so.2": X86_64_ELF,
        },
    )


def examine(root: Path, environment: dict[str, str] | None = None, commands: dict[str, Ended] | None = None, scope: Scope = SCOPE):
    return driver.collect(Host(root=str(root), environment=environment or {}, commands=commands or {}), scope)


def copies(sections: dict[str, Section], soname: str) -> list[tuple[str, str, str, str, bool]]:
    found = sections["driver_libraries"].value or ()
    return [(lib.path, lib.version, lib.kind, lib.found_via, lib.loaded_first) for lib in found if lib.soname == soname]


# --- stories ----------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not SHARED.is_dir(), reason="no shared recordings")
def test_h200_in_a_vm_container(tmp_path):
    recorded = SHARED / "recordings" / "h200"
    plant(
        tmp_path,
        {
            "/.dockerenv": "",
            "/proc/sys/kernel/osrelease": "6.1.0\n",
            "/proc/modules": (recorded / "proc_modules.txt").read_text(),
            "/proc/driver/nvidia/version": (recorded / "proc_driver_version.txt").read_text(),
            "/proc/driver/nvidia/params": (recorded / "proc_driver_params.txt").read_text(),
        },
    )
    found = examine(tmp_path)
    kernel = found["kernel_driver"].value
    assert (kernel.version, kernel.flavour) == ("580.159.04", "open")
    assert kernel.options["NvLinkDisable"] == "1"
    assert kernel.options["RegistryDwords"] == ""
    assert found["loaded_modules"].value.names == ("nvidia", "nvidia_uvm")
    assert found["driver_module_file"].state is State.NOT_ASKED
    assert "container" in found["driver_module_file"].why
    assert found["secure_boot"].state is State.UNREADABLE


def test_driver_upgraded_not_rebooted(tmp_path):
    bare_metal(tmp_path)
    module = f"/lib/modules/{KERNEL}/updates/dkms/nvidia.ko.zst"
    plant(
        tmp_path,
        {
            "/proc/driver/nvidia/version": CLOSED_570,
            f"/lib/modules/{KERNEL}/modules.dep": "kernel/fs/ext4/ext4.ko: kernel/lib/crc16.ko\n"
            "updates/dkms/nvidia-uvm.ko.zst: updates/dkms/nvidia.ko.zst\nupdates/dkms/nvidia.ko.zst:\n",
        },
    )
    plant_library(tmp_path, "/usr/lib/x86_64-linux-gnu", "libcuda.so.1", "580.65.06")
    plant_library(tmp_path, "/usr/lib/x86_64-linux-gnu", "libnvidia-ml.so.1", "580.65.06")
    modinfo = f"filename:       {module}\nversion:        580.65.06\nlicense:        Dual MIT/GPL\nsigner:         DKMS module signing key\nsig_hashalgo:   sha512\n"
    found = examine(tmp_path, commands={f"modinfo {module}": Ended(outcome="exited", code=0, stdout=modinfo)})
    assert found["kernel_driver"].value.version == "570.133.20"
    assert found["kernel_driver"].value.flavour == "proprietary"
    on_disk = found["driver_module_file"].value
    assert (on_disk.path, on_disk.version, on_disk.signed, on_disk.signer) == (module, "580.65.06", True, "DKMS module signing key")
    assert copies(found, "libcuda.so.1") == [
        ("/usr/lib/x86_64-linux-gnu/libcuda.so.580.65.06", "580.65.06", "driver", "default-directory", True)
    ]
    assert copies(found, "libnvidia-ml.so.1")[0][1] == "580.65.06"


def test_no_driver_is_absent_not_unreadable(tmp_path):
    plant(tmp_path, {"/proc/modules": "ext4 1 1 - Live 0x0\nnouveau 1 1 - Live 0x0\n", "/proc/sys/kernel/osrelease": KERNEL})
    plant(tmp_path, {f"/lib/modules/{KERNEL}/modules.dep": "kernel/drivers/gpu/drm/nouveau/nouveau.ko:\n"})
    found = examine(tmp_path)
    assert found["kernel_driver"].state is State.ABSENT
    assert found["driver_module_file"].state is State.ABSENT
    assert KERNEL in found["driver_module_file"].why
    assert found["driver_libraries"].state is State.ABSENT
    assert found["loaded_modules"].value.names == ("ext4", "nouveau")
    assert found["loaded_modules"].value.complete


def test_nothing_readable_claims_nothing(tmp_path):
    found = examine(tmp_path)
    for name in ("kernel_driver", "driver_module_file", "secure_boot", "loaded_modules"):
        assert found[name].state is State.UNREADABLE, name
        assert found[name].why


def test_version_file_that_cannot_be_read_is_not_no_driver(tmp_path):
    bare_metal(tmp_path)
    (tmp_path / "proc/driver/nvidia/version").mkdir(parents=True)  # reading it fails, for root too
    found = examine(tmp_path)["kernel_driver"]
    assert found.state is State.UNREADABLE
    assert "/proc/driver/nvidia/version" in found.why


def test_masked_proc_with_the_module_loaded(tmp_path):
    bare_metal(tmp_path)
    assert examine(tmp_path)["kernel_driver"].state is State.UNREADABLE
    plant(tmp_path, {"/sys/module/nvidia/version": "575.57.08\n", "/sys/module/nvidia/parameters/NVreg_EnableStreamMemOPs": "1\n"})
    found = examine(tmp_path)["kernel_driver"]
    assert (found.value.version, found.value.flavour, found.found_via) == ("575.57.08", "", "/sys/module/nvidia/version")
    assert found.value.options == {"EnableStreamMemOPs": "1"}


def test_garbage_in_the_version_file(tmp_path):
    bare_metal(tmp_path)
    plant(tmp_path, {"/proc/driver/nvidia/version": b"\xff\xfe\x00 not a version"})
    assert examine(tmp_path)["kernel_driver"].state is State.UNREADABLE


def test_a_kernel_without_loadable_modules(tmp_path):
    plant(tmp_path, {"/sys/module/kernel/parameters/panic": "0"})
    found = examine(tmp_path)
    assert found["kernel_driver"].state is State.ABSENT
    assert found["loaded_modules"].value.names == ()


def test_module_version_from_dkms_when_modinfo_is_missing(tmp_path):
    bare_metal(tmp_path)
    plant(tmp_path, {f"/lib/modules/{KERNEL}/modules.dep": "extra/nvidia-current.ko.xz:\n"})
    plant(tmp_path, {f"/var/lib/dkms/nvidia/580.65.06/{KERNEL}/x86_64/log/make.log": ""})
    plant(tmp_path, {"/var/lib/dkms/nvidia/570.133.20/5.15.0-1-generic/x86_64/log/make.log": ""})
    on_disk = examine(tmp_path)["driver_module_file"].value
    assert on_disk.path.endswith("extra/nvidia-current.ko.xz")
    assert on_disk.version == "580.65.06"
    assert on_disk.signed is None
    assert on_disk.missing["signed"].state is State.UNREADABLE


def test_unsigned_module(tmp_path):
    bare_metal(tmp_path)
    plant(tmp_path, {f"/lib/modules/{KERNEL}/modules.dep": "updates/nvidia.ko:\n"})
    said = Ended(outcome="exited", code=0, stdout="version:        580.65.06\nlicense:        NVIDIA\n")
    on_disk = examine(tmp_path, commands={f"modinfo /lib/modules/{KERNEL}/updates/nvidia.ko": said})["driver_module_file"].value
    assert on_disk.signed is False
    assert on_disk.version == "580.65.06"


def test_compat_first_in_the_loader_configuration(tmp_path):
    bare_metal(tmp_path)
    plant_library(tmp_path, "/usr/local/cuda-12.8/compat", "libcuda.so.1", "570.86.10")
    plant_library(tmp_path, "/usr/lib/x86_64-linux-gnu", "libcuda.so.1", "580.65.06")
    plant(
        tmp_path,
        {
            "/etc/ld.so.conf": "include ld.so.conf.d/*.conf\n",
            "/etc/ld.so.conf.d/00-cuda-compat.conf": "/usr/local/cuda/compat\n",
            "/etc/ld.so.cache": make_cache(
                [("libcuda.so.1", "/usr/local/cuda/compat/libcuda.so.1"), ("libcuda.so.1", "/usr/lib/x86_64-linux-gnu/libcuda.so.1")]
            ),
        },
        {"/usr/local/cuda": "cuda-12.8"},
    )
    assert copies(examine(tmp_path), "libcuda.so.1") == [
        ("/usr/local/cuda-12.8/compat/libcuda.so.570.86.10", "570.86.10", "compat", "ld.so.cache", True),
        ("/usr/lib/x86_64-linux-gnu/libcuda.so.580.65.06", "580.65.06", "driver", "ld.so.cache", False),
    ]


def test_compat_that_nobody_loads_is_found_but_not_first(tmp_path):
    bare_metal(tmp_path)
    plant_library(tmp_path, "/usr/local/cuda-13.0/compat", "libcuda.so.1", "580.65.06")
    plant_library(tmp_path, "/usr/lib64", "libcuda.so.1", "535.129.03")
    assert [(kind, via, first) for _, _, kind, via, first in copies(examine(tmp_path), "libcuda.so.1")] == [
        ("driver", "default-directory", True),
        ("compat", "search", False),
    ]


def test_stub_on_the_library_path(tmp_path):
    bare_metal(tmp_path)
    stubs = "/usr/local/cuda/targets/x86_64-linux/lib/stubs"
    plant(tmp_path, {f"{stubs}/libcuda.so": X86_64_ELF + bytes(90_000)})
    plant_library(tmp_path, "/usr/lib/x86_64-linux-gnu", "libcuda.so.1", "580.65.06")
    assert copies(examine(tmp_path), "libcuda.so") == []  # a stub for the linker alone is no fault
    found = examine(tmp_path, {"LD_LIBRARY_PATH": f"relative::{stubs}"})
    assert copies(found, "libcuda.so") == [(f"{stubs}/libcuda.so", "", "stub", "LD_LIBRARY_PATH", True)]
    assert copies(found, "libcuda.so.1")[0][2:] == ("driver", "default-directory", True)
    plant(tmp_path, {}, {f"{stubs}/libcuda.so.1": "libcuda.so"})
    found = examine(tmp_path, {"LD_LIBRARY_PATH": stubs})
    assert copies(found, "libcuda.so.1")[0][2:] == ("stub", "LD_LIBRARY_PATH", True)
    assert copies(examine(tmp_path), "libcuda.so.1")[1][2:] == ("stub", "search", False)


def test_an_empty_libcuda_is_no_driver(tmp_path):
    bare_metal(tmp_path)
    plant(tmp_path, {"/usr/lib/x86_64-linux-gnu/libcuda.so.1": b""})
    assert copies(examine(tmp_path), "libcuda.so.1")[0][2] == "stub"


def test_wsl(tmp_path):
    plant(
        tmp_path,
        {
            "/proc/modules": "",
            "/dev/dxg": "",
            "/lib64/ld-linux-x86-64.so.2": X86_64_ELF,
            "/etc/ld.so.conf": "/usr/lib/wsl/lib\n",
            "/usr/lib/wsl/lib/libcuda.so.1": X86_64_ELF + bytes(150_000),
        },
    )
    found = examine(tmp_path)
    assert found["kernel_driver"].state is State.ABSENT
    assert "WSL" in found["kernel_driver"].why
    assert copies(found, "libcuda.so.1") == [("/usr/lib/wsl/lib/libcuda.so.1", "", "wsl", "ld.so.conf", False)]


def test_libraries_of_a_conda_environment(tmp_path):
    bare_metal(tmp_path)
    plant_library(tmp_path, "/opt/conda/envs/x/cuda-compat", "libcuda.so.1", "580.65.06")
    target = Target(path="/opt/conda/envs/x/bin/python", chosen_by="CONDA_PREFIX", prefix="/opt/conda/envs/x", kind="conda")
    found = examine(tmp_path, scope=Scope(target=target))
    assert copies(found, "libcuda.so.1")[0][2:] == ("compat", "search", False)


def test_one_file_under_two_names_is_one_copy(tmp_path):
    bare_metal(tmp_path)
    plant_library(tmp_path, "/usr/lib/x86_64-linux-gnu", "libcuda.so.1", "580.65.06")
    plant(tmp_path, {}, {"/usr/local/nvidia/lib64": "/usr/lib/x86_64-linux-gnu", "/lib": "usr/lib"})
    assert len(copies(examine(tmp_path, {"LD_LIBRARY_PATH": "/usr/local/nvidia/lib64"}), "libcuda.so.1")) == 1


@pytest.mark.parametrize(
    ("variable", "enabled"),
    [(b"\x06\0\0\0\x01", True), (b"\x06\0\0\0\x00", False), (b"", None), (b"\x06\0\0\0", None), (b"\x06\0\0\0\xff", None)],
)
def test_secure_boot(tmp_path, variable, enabled):
    plant(tmp_path, {driver.SECURE_BOOT_VARIABLE: variable, "/sys/kernel/security/lockdown": "none [integrity] confidentiality\n"})
    found = examine(tmp_path)["secure_boot"]
    if enabled is None:
        assert found.state is State.UNREADABLE
    else:
        assert (found.value.enabled, found.value.lockdown) == (enabled, "integrity")


def test_secure_boot_without_efi_and_with_hidden_variables(tmp_path):
    plant(tmp_path, {"/sys/firmware/dmi/tables/DMI": ""})
    assert examine(tmp_path)["secure_boot"].value.enabled is False
    plant(tmp_path, {"/sys/firmware/efi/fw_platform_size": "64"})
    assert examine(tmp_path)["secure_boot"].state is State.UNREADABLE


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (OPEN_580, ("580.65.06", "open")),
        (CLOSED_570, ("570.133.20", "proprietary")),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  520.56.06  Thu Oct  6 21:38:55 UTC 2022", ("520.56.06", "proprietary")),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  610.12  Release Build", ("610.12", "open")),
        ("", ("", "")),
        ("GCC version:  gcc version 15.3.0 (GCC)", ("", "")),
    ],
)
def test_version_lines(text, expected):
    assert driver.parse_version(text) == expected


@given(st.text(max_size=300))
def test_version_parser_never_raises(text):
    version, flavour = driver.parse_version(text)
    assert bool(version) == bool(flavour)


# --- the loader -------------------------------------------------------------------------------------------------------


def loader_host(tmp_path: Path, environment: dict[str, str] | None = None) -> Host:
    plant(tmp_path, {"/lib64/ld-linux-x86-64.so.2": X86_64_ELF})
    return Host(root=str(tmp_path), environment=environment or {}, commands={})


def test_order_of_search(tmp_path):
    names = ("preload", "rpath", "environment", "runpath", "cached", "usr/lib64")
    plant(tmp_path, {f"/{name}/libx.so.1": X86_64_ELF for name in names})
    plant(tmp_path, {"/etc/ld.so.cache": make_cache([("libx.so.1", "/cached/libx.so.1"), ("libx.so.1", "/gone/libx.so.1")])})
    environment = {"LD_PRELOAD": "/other.so /preload/libx.so.1", "LD_LIBRARY_PATH": "/environment:"}
    host = loader_host(tmp_path)
    with_rpath = loader.search(host, "libx.so.1", environment, ("/rpath",))
    assert [hit.via for hit in with_rpath] == ["LD_PRELOAD", "RPATH", "LD_LIBRARY_PATH", "ld.so.cache", "default-directory"]
    with_runpath = loader.search(host, "libx.so.1", environment, ("/rpath",), runpath=("/runpath",))
    assert [hit.path.split("/")[1] for hit in with_runpath] == ["preload", "environment", "runpath", "cached", "usr"]
    assert loader.search(host, "liby.so.1", environment) == ()


def test_libraries_of_another_architecture_are_passed_over(tmp_path):
    plant(tmp_path, {"/usr/lib/libcuda.so.1": I386_ELF, "/env/libcuda.so.1": b"not an ELF file at all"})
    host = loader_host(tmp_path)
    assert loader.search(host, "libcuda.so.1", {}) == ()
    assert [hit.path for hit in loader.search(host, "libcuda.so.1", {"LD_LIBRARY_PATH": "/env"})] == ["/env/libcuda.so.1"]


def test_configuration_with_includes_comments_and_a_loop(tmp_path):
    plant(
        tmp_path,
        {
            "/etc/ld.so.conf": "# first\n/opt/a\ninclude ld.so.conf.d/*.conf\ninclude /etc/ld.so.conf\nhwcap 1 nosegneg\nnonsense\n",
            "/etc/ld.so.conf.d/20-b.conf": "/opt/b/  # why\n",
            "/etc/ld.so.conf.d/10-a.conf": "\t/opt/c\n/opt/a\n",
        },
    )
    assert loader.configured_directories(loader_host(tmp_path)) == ("/opt/a", "/opt/c", "/opt/b")


@pytest.mark.skipif(not SHARED.is_dir(), reason="no shared recordings")
def test_ldconfig_text_of_a_real_node():
    cache = loader.parse_ldconfig((SHARED / "recordings" / "h200" / "ldconfig.txt").read_text())
    assert cache["libcuda.so.1"] == ("/usr/local/nvidia/lib64/libcuda.so.1", "/lib/libcuda.so.1")
    assert loader.parse_ldconfig("536 libs found in cache\n\tlibz.so (libc6) => /lib32/libz.so\n") == {}
    arm = '\tlibcuda.so.1 (libc6,AArch64, hwcap: "x") => /usr/local/cuda/compat/libcuda.so.1\n'
    assert loader.parse_ldconfig(arm, "aarch64") == {"libcuda.so.1": ("/usr/local/cuda/compat/libcuda.so.1",)}


def test_search_path_variables():
    assert loader.expand("$ORIGIN/../lib:${LIB}", origin="/a/b", architecture="x86_64") == "/a/b/../lib:lib/x86_64-linux-gnu"
    assert loader.expand("$ORIGINAL/$PLATFORM", origin="/a", architecture="aarch64") == "$ORIGINAL/aarch64"
    assert loader.expand("$ORIGIN/x") == "$ORIGIN/x"


NAMES = st.from_regex(r"lib[a-z]{1,8}\.so\.[0-9]{1,2}", fullmatch=True)
PATHS = st.from_regex(r"(/[a-z0-9.]{1,8}){1,4}", fullmatch=True)


@given(st.lists(st.tuples(NAMES, PATHS), max_size=20), st.binary(max_size=64).filter(lambda table: b"glibc-ld.so.cache" not in table))
def test_cache_round_trip_also_behind_the_old_table(entries, old_table):
    expected: dict[str, tuple[str, ...]] = {}
    for name, path in entries:
        if path not in expected.get(name, ()):
            expected[name] = (*expected.get(name, ()), path)
    data = make_cache(entries)
    assert loader.parse_cache(data, "x86_64") == expected
    assert loader.parse_cache(b"ld.so-1.7.0\0" + old_table + data, "x86_64") == expected
    assert loader.parse_cache(data, "aarch64") == {}
    assert loader.parse_cache(data, "riscv64") == {}


@given(st.lists(st.tuples(NAMES, PATHS), min_size=1, max_size=5), st.data())
def test_damaged_cache_never_raises(entries, data):
    cache = bytearray(make_cache(entries))
    for _ in range(data.draw(st.integers(0, 8))):
        cache[data.draw(st.integers(0, len(cache) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(cache)))
    for path in (path for paths in loader.parse_cache(bytes(cache[:cut]), "x86_64").values() for path in paths):
        assert path.startswith("/")


def test_cache_that_claims_billions_of_entries():
    data = bytearray(make_cache([("liba.so.1", "/a/liba.so.1")]))
    data[20:24] = b"\xff\xff\xff\xff"
    assert loader.parse_cache(bytes(data), "x86_64") == {"liba.so.1": ("/a/liba.so.1",)}


@pytest.mark.skipif(not os.path.exists("/etc/ld.so.cache") or os.uname().machine != "x86_64", reason="no cache here")
def test_cache_of_this_machine_agrees_with_ldconfig():
    host = Host()
    ended = host.run(("ldconfig", "-p"))
    if not ended.ok:
        ended = host.run(("/sbin/ldconfig", "-p"))
    if not ended.ok:
        pytest.skip("no ldconfig")
    assert loader.read_cache(host, "x86_64") == loader.parse_ldconfig(ended.stdout)
