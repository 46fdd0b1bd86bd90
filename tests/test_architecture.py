"""The imports go one way, and the doctor never imports the patient."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PATIENT = {"torch", "vllm", "sglang", "triton", "flash_attn", "numpy", "transformers"}
LAYERS = {
    "dsdoctor/record.py": (),
    "dsdoctor/facts.py": ("dsdoctor.record",),
    "dsdoctor/errors.py": (),
    "dsdoctor/plain.py": (),
    "dsdoctor/findings.py": ("dsdoctor.facts", "dsdoctor.record"),
    "dsdoctor/versions.py": (),
    "dsdoctor/rows.py": ("dsdoctor.record", "dsdoctor.versions"),
    "dsdoctor/diagnose.py": (
        "dsdoctor",
        "dsdoctor.facts",
        "dsdoctor.findings",
        "dsdoctor.checks._check",
        "dsdoctor.checks._from_log",
        "dsdoctor.plain",
        "dsdoctor.purpose",
        "dsdoctor.record",
    ),
    "dsdoctor/checks/_check.py": ("dsdoctor.facts", "dsdoctor.findings", "dsdoctor.record"),
}
CHECK_MAY = {
    "dsdoctor.record",
    "dsdoctor.facts",
    "dsdoctor.findings",
    "dsdoctor.checks",
    "dsdoctor.rows",
    "dsdoctor.versions",
    "dsdoctor.remedies",
}
TYPES_ONLY = {
    "dsdoctor.advise.answer", "dsdoctor.advise.for_checks", "dsdoctor.rows_health", "dsdoctor.rows_stack", "dsdoctor.rows_profile",
    "dsdoctor.plan", "dsdoctor.purpose",
}  # fmt: skip
"""What a check may name as the type of a parameter, and not import: matrices, search and plans are handed over when they are needed."""
RENDER_MAY = {
    "dsdoctor.record",
    "dsdoctor.errors",
    "dsdoctor.findings",
    "dsdoctor.facts",
    "dsdoctor.plain",
    "dsdoctor.render",
    "dsdoctor.topology",
}
RENDER_ALSO = {
    "fleet.py": {"dsdoctor.fleet.answer"},
    "fleet_html.py": {"dsdoctor.fleet.answer"},
    "explain.py": {
        "dsdoctor.checks._check",
        "dsdoctor.matrix",
        "dsdoctor.plugins",
        "dsdoctor.remedies",
        "dsdoctor.rows_health",
        "dsdoctor.sources",
    },
    "advice.py": {"dsdoctor.advise"},
    "matrix.py": {
        "dsdoctor.lint",
        "dsdoctor.matrix",
        "dsdoctor.matrix_commands",
        "dsdoctor.refresh",
        "dsdoctor.rows",
        "dsdoctor.rows_profile",
    },
    "plan.py": {"dsdoctor.plan"},
    "smoke.py": {"dsdoctor.smoke_table"},
}
"""What shows something else than a report reads that."""
IO_MODULES = {"os", "subprocess", "socket", "pathlib", "shutil", "glob", "io", "tempfile", "urllib", "http"}


def imports_of(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module)
    return found


def imports_at_run_time_of(path: Path) -> set[str]:
    """The imports of a file without those that only a type checker reads."""
    tree = ast.parse(path.read_text())
    for_types = {
        id(inner)
        for node in tree.body
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    nodes = [node for node in ast.walk(tree) if id(node) not in for_types]
    return {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module} | {
        alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names
    }


def python_files(folder: str) -> list[Path]:
    return sorted(path for path in (ROOT / folder).rglob("*.py") if "in_target" not in path.parts)


@pytest.mark.parametrize("file", LAYERS)
def test_a_core_file_imports_only_what_is_below_it(file: str) -> None:
    ours = {name for name in imports_of(ROOT / file) if name.split(".")[0] == "dsdoctor"}
    assert ours <= set(LAYERS[file])


@pytest.mark.parametrize("path", python_files("dsdoctor/checks"), ids=lambda path: str(path.relative_to(ROOT)))
def test_checks_judge_and_touch_nothing(path: Path) -> None:
    """Advice comes as the parameter `advice`; its type may be named, and nothing of the search is imported."""
    imported = imports_at_run_time_of(path)
    assert not {name.split(".")[0] for name in imports_of(path)} & IO_MODULES
    assert {name for name in imports_of(path) - imported if name.startswith("dsdoctor.")} <= TYPES_ONLY
    ours = {name for name in imported if name.startswith("dsdoctor.")}
    assert all(any(name == allowed or name.startswith(f"{allowed}.") for allowed in CHECK_MAY | {"dsdoctor.errors"}) for name in ours), ours


@pytest.mark.parametrize("path", python_files("dsdoctor/render"), ids=lambda path: path.name)
def test_renderers_read_a_report_and_nothing_else(path: Path) -> None:
    ours = {name for name in imports_of(path) if name.startswith("dsdoctor.")}
    allowed = RENDER_MAY | RENDER_ALSO.get(path.name, set())
    assert all(any(name == item or name.startswith(f"{item}.") for item in allowed) for name in ours), ours - allowed


def test_the_doctor_never_imports_the_patient() -> None:
    for path in (*python_files("dsdoctor"), *python_files("probes")):
        assert not {name.split(".")[0] for name in imports_of(path)} & PATIENT, path


def test_probes_do_not_judge() -> None:
    for path in python_files("probes"):
        assert not {name for name in imports_of(path) if name.startswith(("dsdoctor.checks", "dsdoctor.findings", "dsdoctor.matrix"))}, path


def test_nothing_in_the_doctor_imports_probes_by_name() -> None:
    for path in python_files("dsdoctor"):
        assert not {name for name in imports_of(path) if name.startswith(("dsdoctor.probes", "dsdoctor.matrices"))}, path


def test_the_mapped_folders_are_not_shadowed() -> None:
    assert not (ROOT / "dsdoctor" / "probes").exists()
    assert not (ROOT / "dsdoctor" / "matrices").exists()


def test_the_command_line_starts_light() -> None:
    heavy = {"rich", "yaml", "pynvml", "elftools", "importlib.metadata", "asyncio", "packaging", "dsdoctor.facts"}
    code = "import sys, dsdoctor.cli; print(' '.join(sys.modules))"
    loaded = set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())
    ours_only = loaded - set(
        subprocess.run(
            [sys.executable, "-c", "import sys, typer; print(' '.join(sys.modules))"], capture_output=True, text=True, check=True
        ).stdout.split()
    )
    assert not ours_only & heavy
