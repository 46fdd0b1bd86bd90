"""The kernel log: the parser on real logs of every form, and the probe's way from one source to the next."""

from __future__ import annotations

import importlib
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsdoctor.facts import State
from dsdoctor.sources import kernel_text
from dsdoctor.sources.child import Ended
from dsdoctor.sources.host import Host
from dsdoctor.sources.probe import Scope

SHARED = Path(os.environ.get("DSDOCTOR_SHARED", Path(__file__).resolve().parents[1].parent / "shared"))
FIXTURES = SHARED / "fixtures"
kernel_log = importlib.import_module("dsdoctor.probes.kernel_log")
needs_fixtures = pytest.mark.skipif(not FIXTURES.is_dir(), reason="no shared fixtures")

XID_79 = "NVRM: Xid (PCI:0000:9c:00): 79, pid=1234, name=python, GPU has fallen off the bus."
JOURNAL = " ".join(kernel_log.JOURNAL)


# --- the parser -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "seconds"),
    [
        (XID_79, None),
        (f"[  123.456789] {XID_79}", 123.456789),
        (f"[  123.456789][  T456] {XID_79}", 123.456789),
        (f"4,3964,206764307,-;{XID_79}", 206.764307),
        (f"4,3964,206764307,-,caller=T123;{XID_79}", 206.764307),
        (f"<4>[  123.5] {XID_79}", 123.5),
        (f"[Sun Feb 23 16:24:18 2025] {XID_79}", None),
        (f"kern  :warn  : [  123.456789] {XID_79}", 123.456789),
        (f"kern  :warn  : 2025-01-21T04:41:44,285060+00:00 {XID_79}", None),
        (f"Aug 17 00:00:24 node-0 kernel: {XID_79}", None),
        (f"Aug 17 00:00:24 node-0 kernel: [  123.456789] {XID_79}", 123.456789),
        (f"2025-01-21T04:41:44.285060+00:00 node-0 kernel: {XID_79}", None),
        (f"[  123.456789] node-0 kernel: {XID_79}\r", 123.456789),
        (f"[Feb23 16:24] {XID_79}", None),
        (f"[  +0.000012] {XID_79}", None),
    ],
)
def test_an_xid_in_every_form_of_log(line, seconds):
    (xid,) = kernel_text.read(line).xids
    assert (xid.code, xid.pci_address, xid.text, xid.seconds_since_boot) == (79, "0000:9c:00.0", XID_79, seconds)


@pytest.mark.parametrize(
    ("written", "address"),
    [
        ("PCI:0000:9c:00", "0000:9c:00.0"),
        ("0000:03:00", "0000:03:00.0"),
        ("PCI:0008:01:00", "0008:01:00.0"),
        ("PCI:0000:C1:00 GPU-I:06", "0000:c1:00.0"),
        ("PCI:0000:05:00.0", "0000:05:00.0"),
        ("00000000:9C:00.0", "0000:9c:00.0"),
        ("PCI:10000:01:00", "10000:01:00.0"),
        ("9c:00", "0000:9c:00.0"),
        ("what", ""),
    ],
)
def test_addresses(written, address):
    assert kernel_text.normal_address(written) == address
    (xid,) = kernel_text.read(f"NVRM: Xid ({written}): 48, pid='<unknown>', An uncorrectable double bit error").xids
    assert xid.pci_address == address


@needs_fixtures
def test_log_with_xid_119():
    text = (FIXTURES / "gpud" / "xid_dmesg-with-xid-119.log").read_text()
    log = kernel_text.read(text, file="dmesg.log")
    assert [xid.code for xid in log.xids] == [119] * 5
    assert {xid.pci_address for xid in log.xids} == {"0000:9b:00.0"}
    assert log.xids[0].where == "dmesg.log:3"
    assert text.splitlines()[2].endswith(log.xids[0].text)
    assert any("The GPU likely needs to be reset" in line.text for line in log.lines)
    assert not any("GSP_LOCKDOWN_NOTICE" in line.text for line in log.lines)  # rows of the history table


@needs_fixtures
def test_kmsg_records_without_trouble_give_nothing():
    assert kernel_text.read((FIXTURES / "gpud" / "pkg_kmsg_kmsg.1.log").read_text()) == kernel_text.KernelLog()


@needs_fixtures
def test_peermem_errors():
    log = kernel_text.read((FIXTURES / "gpud" / "pkg_kmsg_kmsg.2.peermem.log").read_text())
    assert len(log.lines) == 7
    assert log.lines[0].text.startswith("nvidia-peermem nv_get_p2p_free_callback:127 ERROR")
    assert log.lines[0].seconds_since_boot == pytest.approx(227.996636)


@needs_fixtures
def test_crash_inside_nccl():
    log = kernel_text.read((FIXTURES / "gpud" / "nccl_dmesg.decode.iso.log").read_text())
    assert len(log.lines) == 2
    assert log.lines[0].text.startswith("pt_main_thread[2536443]: segfault at")


@needs_fixtures
def test_a_syslog_about_other_things_gives_nothing():
    assert kernel_text.read((FIXTURES / "azurehpc-health-checks" / "1dev_6flap_syslog").read_text()) == kernel_text.KernelLog()


@pytest.mark.parametrize(
    "message",
    [
        "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)",
        "NVRM: GPU 0000:01:00.0 is already bound to NovaCore.",
        "nouveau 0000:01:00.0: NVIDIA GP104 (134000a1)",
        "nova_core 0000:01:00.0: Probe Nova Core GPU driver.",
        "nvidia: module verification failed: signature and/or required key missing - tainting kernel",
        "Lockdown: modprobe: unsigned module loading is restricted; see man kernel_lockdown.7",
        "nvidia: version magic '6.8.0-40-generic SMP' should be '6.8.0-41-generic SMP'",
        "pcieport 0000:00:01.0: AER: Corrected error received: 0000:01:00.0",
        "nvidia 0000:01:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
        "NVRM: GPU at PCI:0000:9b:00: GPU-509665ad-b600-ac93-3616-d754b23d636d",
        "pcieport 0000:00:01.0: DPC: containment event, status:0x1f01 source:0x0000",
        "DMAR: [DMA Read NO_PASID] Request device [41:00.0] fault addr 0x0 [fault reason 0x06] PTE Read access is not set",
        "AMD-Vi: Event logged [IO_PAGE_FAULT device=41:00.0 domain=0x000e address=0xfff flags=0x0020]",
    ],
)
def test_lines_that_are_kept(message):
    log = kernel_text.read(f"boring line\n[    5.000001] {message}\n")
    assert [(line.text, line.seconds_since_boot) for line in log.lines] == [(message, 5.000001)]
    assert log.xids == ()


@pytest.mark.parametrize(
    "message",
    [
        "IPv6: ADDRCONF(NETDEV_CHANGE): eth0: link becomes ready",
        "nvidia-nvswitch2: open (major=510)",
        "EXT4-fs (vda): mounted filesystem",
        "systemd[1]: Started NVIDIA Persistence Daemon.",
        "the innovation of a supernova",
    ],
)
def test_lines_that_are_left_out(message):
    assert kernel_text.read(f"[    5.000001] {message}") == kernel_text.KernelLog()


def test_a_flood_does_not_hide_the_first_of_another_kind():
    flood = [f"[ {n}.0] pcieport 0000:00:01.0: AER: Corrected error received: 0000:01:00.0" for n in range(5000)]
    storm = [f"[ {n}.0] NVRM: Xid (PCI:0000:9c:00): 31, pid={n}, MMU Fault" for n in range(5000)]
    first = ["[ 0.5] nouveau 0000:02:00.0: unknown chipset", "[ 0.6] " + XID_79]
    log = kernel_text.read("\n".join(first + flood + storm))
    assert log.lines[0].text == "nouveau 0000:02:00.0: unknown chipset"
    assert log.xids[0].code == 79
    assert log.xids[-1].seconds_since_boot == 4999.0
    assert len(log.xids) + len(log.lines) <= 4 * kernel_text.KEPT_EVENTS


@given(
    st.integers(0, 999), st.integers(0, 0xFFFF), st.integers(0, 255), st.integers(0, 31), st.text("abc ,=()'<>", max_size=30), st.booleans()
)
def test_xid_round_trip(code, domain, bus, device, rest, upper):
    address = f"{domain:04x}:{bus:02x}:{device:02x}"
    written = address.upper() if upper else address
    (xid,) = kernel_text.read(f"[ 1.5] NVRM: Xid (PCI:{written}): {code}, {rest}").xids
    assert (xid.code, xid.pci_address, xid.seconds_since_boot) == (code, f"{address}.0", 1.5)


@given(
    st.lists(
        st.sampled_from(["NVRM:", " Xid (", "PCI:", "0000:", "9c:00", "): ", "79", ",", "[ 1.2] ", "6,1,2,-;", "\n", "kernel: ", "é\0"])
    )
)
def test_the_parser_never_raises(pieces):
    log = kernel_text.read("".join(pieces), file="f")
    assert all(event.where.startswith("f:") for event in (*log.xids, *log.lines))


# --- the probe --------------------------------------------------------------------------------------------------------


def examine(root: Path, commands: dict[str, Ended] | None = None):
    return kernel_log.collect(Host(root=str(root), environment={}, commands=commands or {}), Scope(target=None))["kernel_log"]


def test_the_ring_buffer_is_read_first(tmp_path):
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/kmsg").write_text(f"4,1,2000000,-;{XID_79}\n SUBSYSTEM=pci\n DEVICE=+pci:0000:9c:00.0\n")
    found = examine(tmp_path)
    assert found.found_via == "/dev/kmsg"
    assert found.value.xids[0].seconds_since_boot == 2.0
    assert found.value.xids[0].where == ""


def test_dmesg_answers_when_the_ring_buffer_is_hidden(tmp_path):
    found = examine(tmp_path, {"dmesg": Ended(outcome="exited", code=0, stdout="[    1.0] Linux version 6.8\n")})
    assert found.state is State.KNOWN
    assert found.found_via == "dmesg"
    assert found.value.xids == ()


REFUSED = Ended(outcome="exited", code=1, stderr="dmesg: read kernel buffer failed: Operation not permitted\n")


def test_the_journal_is_the_last_source(tmp_path):
    journal = Ended(outcome="exited", code=0, stdout=f"-- Journal begins --\n[  123.456789] node-0 kernel: {XID_79}\n")
    found = examine(tmp_path, {"dmesg": REFUSED, JOURNAL: journal})
    assert found.value.xids[0].text == XID_79
    assert found.found_via.startswith("journalctl")


def test_no_permission_is_not_a_clean_log(tmp_path):
    found = examine(tmp_path, {"dmesg": REFUSED, JOURNAL: Ended(outcome="exited", code=0, stdout="-- No entries --\n")})
    assert found.state is State.UNREADABLE
    assert "Operation not permitted" in found.why
    assert "no entries" in found.why
    assert "/dev/kmsg: No such file or directory" in found.why


def test_an_empty_or_invented_log_is_not_a_clean_log(tmp_path):
    assert examine(tmp_path, {"dmesg": Ended(outcome="exited", code=0, stdout="\n")}).state is State.UNREADABLE
    invented = Ended(outcome="exited", code=0, stdout="[    0.000000] Starting gVisor...\n")
    assert "gVisor" in examine(tmp_path, {"dmesg": invented}).why
