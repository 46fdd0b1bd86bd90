"""The tree, the matrix, the picture and the JSON of a topology."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from dsdoctor.cli import command_line
from dsdoctor.facts import NvLink
from dsdoctor.matrix import Knowledge
from dsdoctor.render import topology as page
from dsdoctor.render import topology_svg
from dsdoctor.sources import topo_matrix
from dsdoctor.topology import from_facts, picture, read
from dsdoctor.topology.picture import Picture

_spec = importlib.util.spec_from_file_location("topology_stories", Path(__file__).with_name("test_topology.py"))
assert _spec is not None
assert _spec.loader is not None
stories = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(stories)

SVG = "{http://www.w3.org/2000/svg}"


def shown(topology: object) -> Picture:
    return picture.of(topology, Knowledge().matrix("gpu-limits"), Knowledge().matrix("topologies"))  # type: ignore[arg-type]


@pytest.fixture
def server() -> Picture:
    links = tuple(NvLink(index=number, active=number > 1, remote="switch") for number in range(18))
    return shown(from_facts.topology(stories.with_gpus(stories.hgx_server(), {3: {"nvlinks": links}}), "server"))


def text_of(item: Picture, width: int = 80) -> str:
    return page.render(item, width=width, colour=False, unicode=True)


def test_eighty_columns_hold_eight_gpus_with_their_adapters(server: Picture) -> None:
    lines = text_of(server).splitlines()
    copied = ("CUDA_VISIBLE_DEVICES", "export ")
    assert all(len(line) <= 80 for line in lines if not line.strip().startswith(copied))
    assert "! 16 of 18 NVLinks active" in next(line for line in lines if "GPU3" in line)
    assert any("NV16*" in line for line in lines)


def test_the_printed_matrix_reads_back_as_it_was() -> None:
    topology = read.load("example:h200x4-healthy")
    back = topo_matrix.parse(text_of(shown(topology), 110).splitlines())
    assert back is not None
    assert tuple(row.cells for row in back.rows) == topology.matrix(topology.gpus)
    assert back.rows[0].cpu_affinity == "0-63"


def test_a_wide_terminal_shows_one_matrix_and_a_narrow_one_shows_the_same_cells(server: Picture) -> None:
    def cells(width: int) -> set[tuple[str, str, str]]:
        found, columns = set(), []
        for line in text_of(server, width).splitlines():
            words = line.split()
            if words and line.startswith("  ") and all(re.fullmatch(r"(GPU|NIC)\d+", word) for word in words[:1]):
                columns = [word for word in words if re.fullmatch(r"(GPU|NIC)\d+", word)]
            elif columns and words and re.fullmatch(r"(GPU|NIC)\d+", words[0]) and len(words) > len(columns):
                found |= {(words[0], name, cell) for name, cell in zip(columns, words[1:])}
        return found

    assert cells(80)
    assert {(a, b, cell) for a, b, cell in cells(80)} <= cells(200)


def test_ascii_and_colour(server: Picture) -> None:
    plain = page.render(server, width=80, colour=False, unicode=False)
    assert plain.isascii()
    assert "`- PCIe switch" in plain
    coloured = page.render(server, width=80, colour=True, unicode=True)
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == text_of(server)


def test_hostile_names_cannot_steer_the_terminal_or_the_page(server: Picture) -> None:
    topology = read.parse(
        b'<system version="1"><cpu numaid="0"><pci busid="0000:01:00.0" class="0x020700"><nic><net name="&lt;script&gt;&#9;alert"/></nic></pci></cpu></system>',
        "\x1b[31m<b>",
    )
    item = shown(topology)
    assert "\x1b" not in text_of(item)
    drawn = topology_svg.svg(item)
    assert "<script" not in drawn
    assert "<b>" not in drawn
    ElementTree.fromstring(drawn)
    assert "<script" not in topology_svg.html(item)


def test_every_device_is_drawn_once_inside_the_picture_and_none_overlaps(server: Picture) -> None:
    root = ElementTree.fromstring(topology_svg.svg(server))
    width, height = (float(root.get(name, "0")) for name in ("width", "height"))
    boxes = [
        item
        for item in root.iter(f"{SVG}rect")
        if (item.get("class") or "").split()[:1] and item.get("height") == str(topology_svg.BOX_HEIGHT)
    ]
    assert len(boxes) == len(server.topology.devices)
    corners = [tuple(float(item.get(name, "0")) for name in ("x", "y", "width", "height")) for item in boxes]
    for x, y, w, h in corners:
        assert 0 <= x <= x + w <= width
        assert 0 <= y <= y + h <= height
    for number, (x, y, w, h) in enumerate(corners):
        assert not [1 for a, b, c, d in corners[number + 1 :] if x < a + c and a < x + w and y < b + d and b < y + h]
    texts = ["".join(item.itertext()) for item in root.iter(f"{SVG}text")]
    assert {"GPU0", "GPU7", "NIC11 mlx5_11"} <= set(texts)
    assert any(text.startswith("! GPU3: 16 of 18") for text in texts)
    told = [item for item in root.iter(f"{SVG}text") if (item.get("class") or "") in ("warn", "bad", "sub")]
    assert all(len(item.text or "") * (7 if item.get("class") == "sub" else 8.6) <= width for item in told)
    assert "prefers-color-scheme: dark" in topology_svg.svg(server)
    assert not re.search(r"(?:href|src)=|url\(", topology_svg.html(server))


def test_pairs_with_bridges_are_drawn_as_curves() -> None:
    item = shown(from_facts.topology(stories.bridged_cards(), "cards"))
    root = ElementTree.fromstring(topology_svg.svg(item))
    assert sum((path.get("class") or "") == "nvlink" and "C" in (path.get("d") or "") for path in root.iter(f"{SVG}path")) == 2


def test_json_has_the_matrix_and_the_suggestions(server: Picture) -> None:
    document = json.loads(page.document(server))
    assert document["schema"] == "dsdoctor.topology/1"
    assert document["matrix"]["names"][:9] == [*(f"GPU{number}" for number in range(8)), "NIC0"]
    assert document["matrix"]["paths"][0][8] == "PIX"
    assert document["degraded"] == {"GPU3": "16 of 18 NVLinks active"}
    assert document["reference"]["differences"][0]["what"] == "NVLinks"


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_in_every_format(tmp_path: Path) -> None:
    starts = {"terminal": "4 × NVIDIA H200", "json": "{", "svg": "<svg", "html": "<!DOCTYPE html>", "nccl-xml": '<system version="1">'}
    for name, start in starts.items():
        file = tmp_path / name
        result = CliRunner().invoke(command_line(), ["topo", "--from", "example:h200x4-healthy", "--format", name, "-o", str(file)])
        assert result.exit_code == 0, result.output
        assert file.read_text(encoding="utf-8").startswith(start)
        assert result.stdout == ""


@pytest.mark.parametrize(("arguments", "words"), [
    (["--from", "nowhere.txt"], "No such file"),
    (["--from", "example:h200x4-healthy", "--reference", "hgx-h10"], "did you mean hgx-h100"),
])  # fmt: skip
def test_mistakes_are_one_sentence(arguments: list[str], words: str) -> None:
    result = CliRunner().invoke(command_line(), ["topo", *arguments])
    assert result.exit_code == 2
    assert words in result.output
