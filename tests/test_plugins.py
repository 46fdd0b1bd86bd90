"""Plugins come through the same door as the built-in parts; one that fails is named and stops nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsdoctor import plugins
from dsdoctor.plugins import EntryPoint

PLUGIN = '''"""A plugin."""
from dsdoctor.checks._check import check
from dsdoctor.findings import Severity
from dsdoctor.sources.probe import Probe

@check("acme.no-badge", Severity.WARNING)
def no_badge(platform):
    return iter(())

CHECKS = (no_badge,)
PROBES = (Probe(name="acme", provides=(), module="acme_probe", cost="instant"),)
MATRICES = "/acme/matrices"
'''


def distribution(site: Path, name: str, text: str) -> None:
    folder = site / f"{name}-1.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "entry_points.txt").write_text(text)


def test_installed_plugins_are_found_without_importing_anything(tmp_path: Path) -> None:
    distribution(tmp_path, "acme", "[console_scripts]\nacme = acme:main\n\n[dsdoctor.plugins]\nacme = acme_plugin\n")
    distribution(tmp_path, "other", "[console_scripts]\nother = other:main\n")
    distribution(tmp_path, "broken", "[dsdoctor.plugins\nnonsense")
    (tmp_path / "binary-1.0.dist-info").mkdir()
    (tmp_path / "binary-1.0.dist-info" / "entry_points.txt").write_bytes(b"\xff\xfe[dsdoctor.plugins]")
    assert plugins.installed([str(tmp_path), "/nowhere"]) == (EntryPoint("acme", "acme_plugin"),)


def test_a_plugin_adds_its_parts_after_the_built_in_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "acme_plugin_one.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    built_in = plugins.load(())
    parts = plugins.load([EntryPoint("acme", "acme_plugin_one")])
    assert parts.checks[-1].id == "acme.no-badge"
    assert parts.probes[-1].name == "acme"
    assert parts.matrices == ("/acme/matrices",)
    assert len(parts.checks) == len(built_in.checks) + 1
    assert not parts.notices


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("raise RuntimeError('bad day')", "RuntimeError: bad day"),
        ("import nothing_of_that_name", "No module named"),
        ("raise SystemExit(1)", "SystemExit"),
        (
            "from dsdoctor.sources.probe import Probe\nPROBES = (Probe(name='nvml', provides=(), module='x', cost='instant'),)",
            "exist already (nvml)",
        ),
    ],
)
def test_a_plugin_that_fails_is_a_notice_and_the_rest_goes_on(
    source: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"bad_plugin_{abs(hash(source))}"
    (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    parts = plugins.load([EntryPoint("bad", name)])
    assert says in parts.notices[0].text
    assert len(parts.checks) == len(plugins.load(()).checks)
