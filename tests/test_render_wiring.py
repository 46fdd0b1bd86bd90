"""The picture of a broken node in its report, also as a browser shows it."""

from __future__ import annotations

import dataclasses
import html as standard_html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dsdoctor.facts import Cpu, Gpu, NumaNode, NvLink, Origin, PciDevice, PcieLink, Sections, known, unreadable
from dsdoctor.findings import Counts, Diagnosis, KnowledgeStamp, Report, Severity, Verdict
from dsdoctor.plain import to_plain
from dsdoctor.render import html, wiring

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
GEN5 = PcieLink(generation=5, max_generation=5, width=16, max_width=16)


def eight_gpus() -> Sections:
    """Eight GPUs with eight adapters on eight switches, and four NVSwitches; GPU 5 has two NVLinks down, GPU 6 half its lanes."""
    links = tuple(NvLink(index=number, active=True, remote="switch") for number in range(18))
    two_down = tuple(dataclasses.replace(link, active=link.index > 1) for link in links)
    gpus = [
        Gpu(index=index, name="NVIDIA H100 80GB HBM3", pci_address=f"0000:{index + 1:x}9:00.0", nvlinks=links, pcie=GEN5)
        for index in range(8)
    ]
    gpus[5] = dataclasses.replace(gpus[5], nvlinks=two_down)
    gpus[6] = dataclasses.replace(gpus[6], pcie=dataclasses.replace(GEN5, width=8))
    seats = [
        PciDevice(
            address=address, kind=kind, parents=(f"0000:{index + 1:x}6:00.0", f"0000:{index + 1:x}5:00.0"), root=f"pci0000:{index + 1:x}5",
            numa_node=index // 4, link=GEN5, driver="mlx5_core" if kind == "nic" else "nvidia", interfaces=names,
        )
        for index in range(8)
        for address, kind, names in ((f"0000:{index + 1:x}9:00.0", "gpu", ()), (f"0000:{index + 1:x}a:00.0", "nic", (f"mlx5_{index}",)))
    ]  # fmt: skip
    boards = [PciDevice(address=f"0000:{number:x}3:00.0", kind="nvswitch", numa_node=1) for number in range(9, 13)]
    nodes = (NumaNode(index=0, cpus="0-55"), NumaNode(index=1, cpus="56-111"))
    return Sections(gpus=known(tuple(gpus)), pci_devices=known((*seats, *boards)), cpu=known(Cpu(vendor="GenuineIntel", numa_nodes=nodes)))


def report(sections: Sections, *findings: tuple[str, Severity, str]) -> Report:
    diagnosis = tuple(
        Diagnosis(check=check, severity=severity, subject=subject, summary=f"{subject}: bad.") for check, severity, subject in findings
    )
    return Report(
        schema="dsdoctor.report/1", dsdoctor="0.1.0", taken_at="2026-11-29T12:00:00Z", origin=Origin(kind="live", label="this machine"),
        verdict=Verdict.BROKEN, counts=Counts(errors=2), diagnosis=diagnosis, facts=to_plain(sections),
        knowledge=KnowledgeStamp(digest="sha256:00", date="2026-11-29"),
    )  # fmt: skip


BROKEN = report(
    eight_gpus(),
    ("gpu.row-remap", Severity.ERROR, "GPU 3 (NVIDIA H100 80GB HBM3, 0000:49:00.0)"),
    ("pcie.link-degraded", Severity.WARNING, "GPUs 3, 6"),
    ("rdma.link-down", Severity.WARNING, "mlx5_2"),
    ("pcie.acs-redirect", Severity.WARNING, "0000:85:00.0"),
    ("fabric.manager-not-running", Severity.ERROR, "Fabric Manager"),
    ("smoke.bandwidth", Severity.WARNING, "GPU pair 0>1"),
    ("driver.known-bad", Severity.INFO, "GPU 7"),
    ("gpu.lost", Severity.ERROR, "GPU at 0000:ff:00.0"),
)


def test_devices_carry_the_findings_that_name_them() -> None:
    shown = wiring.of(BROKEN)
    assert shown is not None
    told = {name: (fault.text, fault.is_error) for name, fault in shown.faults.items()}
    assert told == {
        "GPU3": ("1. row-remap, 2. link-degraded", True), "GPU6": ("2. link-degraded", False), "NIC2": ("3. link-down", False),
        "0000:85:00.0": ("4. acs-redirect", False), "GPU0": ("6. bandwidth", False), "GPU1": ("6. bandwidth", False),
        **{f"NVSwitch{number}": ("5. manager-not-running", True) for number in range(4)},
    }  # fmt: skip
    assert shown.degraded == {"GPU5": "16 of 18 NVLinks active", "GPU6": "x8 of x16 lanes"}
    assert wiring.unseen(BROKEN, shown) == ("0000:ff:00.0",)


def test_the_page_shows_them() -> None:
    page = html.render(BROKEN)
    assert page.count("<svg") == 1
    assert "NVSwitch0, NVSwitch1, NVSwitch2, NVSwitch3: 5. manager-not-running" in page
    assert "Not in the picture: 0000:ff:00.0." in page
    assert '<a href="#finding-8">' in page
    assert 'id="finding-8"' in page


def seat_below(number: int) -> PciDevice:
    """A GPU below a chain of ports that no board has."""
    return PciDevice(address=f"{number:04x}:ff:00.0", kind="gpu", parents=tuple(f"{port:04x}:00:00.0" for port in range(2000)))


@pytest.mark.parametrize(
    "facts",
    [
        {},
        to_plain(Sections(gpus=unreadable("NVML did not start"))),
        to_plain(Sections(gpus=known((Gpu(index=0, name="NVIDIA H200", pci_address="0000:01:00.0"),)))),
        {"gpus": {"state": "known", "value": [{"from": "another release"}]}},
        to_plain(Sections(pci_devices=known((seat_below(2000), seat_below(2001))))),
    ],
    ids=["no facts", "NVML refused", "one GPU alone", "foreign facts", "a bus of a thousand switches"],
)
def test_no_wiring_no_picture(facts: dict[str, Any]) -> None:
    page = html.render(dataclasses.replace(BROKEN, facts=facts))
    assert "<svg" not in page
    assert "Wiring" not in page


MEASURE = """<!DOCTYPE html><meta charset="utf-8"><body><iframe width="375" height="800" srcdoc="{page}"></iframe><iframe width="1300" height="800" srcdoc="{page}"></iframe>
<pre id="told"></pre><script>
addEventListener("load", () => {{
  const told = [...document.querySelectorAll("iframe")].map(frame => {{
    const page = frame.contentDocument, root = page.documentElement, picture = page.querySelector("figure svg");
    const colour = (node, name) => frame.contentWindow.getComputedStyle(node)[name];
    return {{
      spills: root.scrollWidth > root.clientWidth, letters: page.querySelector("figure svg text.small").getBoundingClientRect().height,
      picture: picture.getBoundingClientRect().width, room: page.querySelector("figure").clientWidth,
      ground: colour(page.body, "backgroundColor"), picture_ground: colour(page.querySelector(".ground"), "fill"),
      faulty: colour(page.querySelector("rect.gpu.faulty"), "stroke"), text: colour(page.querySelector("text.name"), "fill"),
    }};
  }});
  document.querySelector("#told").textContent = JSON.stringify(told);
}});
</script>"""


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
@pytest.mark.parametrize(
    ("scheme", "ground", "text"), [("0", "rgb(13, 17, 23)", "rgb(230, 237, 243)"), ("1", "rgb(255, 255, 255)", "rgb(31, 35, 40)")]
)
def test_a_browser_shows_it_light_and_dark_and_on_a_phone(tmp_path: Path, scheme: str, ground: str, text: str) -> None:
    page = tmp_path / "measure.html"
    page.write_text(MEASURE.format(page=standard_html.escape(html.render(BROKEN))), encoding="utf-8")
    done = subprocess.run(
        [
            str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1800,900",
            f"--blink-settings=preferredColorScheme={scheme}", "--enable-logging=stderr", "--dump-dom", page.as_uri(),
        ],
        capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    found = re.search(r'<pre id="told">(.+?)</pre>', done.stdout)
    assert found, done.stderr[-2000:]
    phone, desk = json.loads(standard_html.unescape(found[1]))
    for told in (phone, desk):
        assert not told["spills"], "the page itself is moved sideways"
        assert (told["ground"], told["picture_ground"], told["text"]) == (ground, ground, text)
    assert phone["faulty"] == desk["faulty"] != text
    assert phone["letters"] >= 11
    assert phone["picture"] > phone["room"]
    assert desk["picture"] <= desk["room"]
    assert "Content Security Policy" not in done.stderr
