"""`nvidia-smi topo -m` as people paste it: from a terminal, through a pager, wrapped, with blanks for tabs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsdoctor.sources.topo_matrix import TopoMatrix, parse

SHARED = Path(os.environ.get("DSDOCTOR_SHARED", Path(__file__).resolve().parents[1].parent / "shared"))

PAIR_OF_A100 = """\
\tGPU0\tGPU1\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNV12\tPXB\tSYS\t48-63,176-191\t3\t\tN/A
GPU1\tNV12\t X \tSYS\tPXB\t16-31,144-159\t1\t\tN/A
NIC0\tPXB\tSYS\t X \tSYS\t\t\t\t
NIC1\tSYS\tPXB\tSYS\t X \t\t\t\t

Legend:

  X    = Self
  NV#  = Connection traversing a bonded set of # NVLinks

NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_10
"""


def read(text: str) -> TopoMatrix:
    found = parse(text.splitlines())
    assert found is not None
    return found


def test_rows_cells_affinities_and_legend() -> None:
    found = read(PAIR_OF_A100)
    assert found.names == ("GPU0", "GPU1", "NIC0", "NIC1")
    assert found.rows[1].cells == ("NV12", "X", "SYS", "PXB")
    assert (found.rows[0].cpu_affinity, found.rows[0].numa_affinity, found.rows[0].gpu_numa_id) == ("48-63,176-191", "3", "N/A")
    assert found.rows[3].cells == ("SYS", "PXB", "SYS", "X")
    assert found.rows[3].cpu_affinity == ""
    assert found.legend == {"NIC0": "mlx5_0", "NIC1": "mlx5_10"}


def test_blanks_for_tabs_colours_and_text_around_it() -> None:
    pasted = (
        "NVIDIA Topology: \n\x1b[4m" + PAIR_OF_A100.replace("\t", "    ").replace("\nGPU0", "\x1b[0m\nGPU0", 1) + "ulimit soft: 1048576\n"
    )
    found, plain = read(pasted), read(PAIR_OF_A100)
    assert [row.cells for row in found.rows] == [row.cells for row in plain.rows]
    assert [row.cpu_affinity for row in found.rows] == [row.cpu_affinity for row in plain.rows]
    assert found.first_line == 2


def test_a_terminal_broke_header_and_rows() -> None:
    lines = PAIR_OF_A100.replace("\t", " ").splitlines()
    broken = [part for line in lines[:5] for part in (line[: line.rfind(" ", 0, 22)], line[line.rfind(" ", 0, 22) :])] + lines[5:]
    found = read("\n".join(broken))
    assert [row.cells for row in found.rows] == [row.cells for row in read(PAIR_OF_A100).rows]
    assert found.rows[0].cpu_affinity == "48-63,176-191"


def test_columns_that_lost_their_blank_are_told_only_where_they_can_be() -> None:
    found = read(
        "      GPU0  GPU1  CPU Affinity  NUMA Affinity  GPU NUMA ID\nGPU0   X   NV18  0-55,112-167 0N/A\nGPU1  NV18  X  56-111,168-2231      N/A\n"
    )
    assert (found.rows[0].cpu_affinity, found.rows[0].numa_affinity) == ("0-55,112-167", "0")
    assert (found.rows[1].cpu_affinity, found.rows[1].numa_affinity) == ("", "")


def test_cells_that_stick_together() -> None:
    found = read("      GPU0  GPU1  NIC0  NIC1  CPU Affinity\nGPU0   X   NV18  NODEPIX     0-55\nGPU1  NV18  X   NODENODE     56-111\n")
    assert [row.cells for row in found.rows] == [("X", "NV18", "NODE", "PIX"), ("NV18", "X", "NODE", "NODE")]
    assert found.rows[1].cpu_affinity == "56-111"


def test_older_drivers_name_adapters_in_the_header_and_say_soc() -> None:
    found = read("\tGPU0\tGPU1\tmlx5_0\tCPU Affinity\nGPU0\t X \tSOC\tPIX\t0-13\nGPU1\tSOC\t X \tSOC\t14-27\nmlx5_0\tPIX\tSOC\t X \t\n")
    assert found.names == ("GPU0", "GPU1", "mlx5_0")
    assert found.rows[0].cells == ("X", "SYS", "PIX")
    assert found.rows[1].cpu_affinity == "14-27"


def test_numa_nodes_of_gpu_memory() -> None:
    found = read("\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \t0-71\t0,3-9,11-17\t\t2\n")
    assert (found.rows[0].numa_affinity, found.rows[0].gpu_numa_id) == ("0,3-9,11-17", "2")


@pytest.mark.parametrize("nodes", ["h200", "h200x2", "h200x4"])
def test_recorded_nodes(nodes: str) -> None:
    file = SHARED / "recordings" / nodes / "topo-m.txt"
    if not file.is_file():
        pytest.skip("recordings are not here")
    found = read(file.read_text())
    assert all(cell == ("X" if i == j else "NV18") for i, row in enumerate(found.rows) for j, cell in enumerate(row.cells))
    assert all(row.numa_affinity == "0" and row.gpu_numa_id == "N/A" and row.cpu_affinity.startswith("0-") for row in found.rows)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "GPU0\tGPU1\n",
        "GPU0\tGPU1\nGPU0\t X \tNV4\n",  # the second row is missing
        "GPU0\tGPU1\nGPU0\t X \t12%\nGPU1\tNV4\t X \n",
        "GPU0: NVIDIA H200 (UUID: GPU-1)\nGPU 1: NVIDIA H200\n",
        " \tGPU0\tGPU1\t\n GPU0\tX\tOK\t\n GPU1\tOK\tX\t\n",  # topo -p2p
    ],
)
def test_other_text_is_not_taken_for_a_matrix(text: str) -> None:
    assert parse(text.splitlines()) is None


@given(st.lists(st.text(alphabet="GPUNIC01X \tNVSYPB-,/A\x1b[m", max_size=60), max_size=12))
def test_never_raises(lines: list[str]) -> None:
    parse(["GPU0\tGPU1", *lines])


@given(
    st.integers(1, 5).flatmap(
        lambda size: st.lists(
            st.lists(st.sampled_from(["NV18", "PIX", "PXB", "PHB", "NODE", "SYS"]), min_size=size, max_size=size),
            min_size=size,
            max_size=size,
        )
    ),
    st.sampled_from(["\t", "   "]),
)
def test_what_is_written_is_read(cells: list[list[str]], gap: str) -> None:
    names = [f"GPU{number}" for number in range(len(cells))]
    rows = [["X" if i == j else cell for j, cell in enumerate(row)] for i, row in enumerate(cells)]
    text = [gap + gap.join([*names, "CPU Affinity", "NUMA Affinity"])]
    text += [gap.join([name, *row, f"{number}-{number + 3}", str(number)]) for number, (name, row) in enumerate(zip(names, rows))]
    found = parse(text)
    assert found is not None
    assert [list(row.cells) for row in found.rows] == rows
    assert [row.numa_affinity for row in found.rows] == [str(number) for number in range(len(rows))]
