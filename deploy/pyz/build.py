#!/usr/bin/env python3
"""Build dsdoctor.pyz: dsdoctor and its dependencies in one file, which any Python from 3.10 on starts, on nodes without pip.

    python deploy/pyz/build.py -o dsdoctor.pyz --bytecode-for python3.10 --bytecode-for python3.12

Bytecode for other versions than those named is not inside: those compile at each start. The same wheels give the same file, byte by byte.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import zipapp
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
INTERPRETER = "/usr/bin/env python3"
OPTIONAL_C = {"yaml"}
"""Packages that do without their C part."""
NOT_COMPILED = "/(pygments|rich|markdown_it)/"
"""What no command of dsdoctor imports."""
LOCAL_TRACES = ("direct_url.json", "RECORD", "INSTALLER", "REQUESTED")
"""What pip notes about this build; it names places of this machine."""
EPOCH = 315532800
"""1980-01-01, the first date that a zip file knows."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("-o", "--output", default="dsdoctor.pyz", metavar="FILE")
    parser.add_argument("--wheel", default="", metavar="FILE", help="a wheel of dsdoctor; without it one is built from this checkout")
    parser.add_argument("--bytecode-for", action="append", default=[], metavar="PYTHON", help="also this Python; repeatable")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dsdoctor-pyz-") as folder:
        tree = Path(folder, "tree")
        wheel = arguments.wheel or build_wheel(Path(folder))
        install(wheel, tree)
        drop_c_parts(tree)
        shutil.copy(Path(__file__).with_name("main.py"), tree / "__main__.py")
        for python in [sys.executable, *arguments.bytecode_for]:
            add_bytecode(python, tree)
        for path in (tree, *tree.rglob("*")):
            os.utime(path, (EPOCH, EPOCH))
        zipapp.create_archive(tree, arguments.output, interpreter=INTERPRETER, compressed=True)
    print(f"{arguments.output}: {Path(arguments.output).stat().st_size / 1e6:.1f} MB")


def build_wheel(folder: Path) -> str:
    """A wheel of a copy of the checkout, so that no build folder stays behind or gets in."""
    copy = folder / "checkout"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__", "tests"))
    pip(["wheel", "--no-deps", "--wheel-dir", str(folder), str(copy)])
    return str(next(folder.glob("dsdoctor-*.whl")))


def install(wheel: str, tree: Path) -> None:
    """The wheel and what it needs into a folder, without traces of this machine."""
    pip(["install", "--no-compile", "--target", str(tree), "--constraint", str(ROOT / "deploy" / "constraints.txt"), wheel])
    shutil.rmtree(tree / "bin", ignore_errors=True)
    for name in LOCAL_TRACES:
        for path in tree.glob(f"*.dist-info/{name}"):
            path.unlink()


def pip(arguments: Sequence[str]) -> None:
    subprocess.run([sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments], check=True)


def drop_c_parts(tree: Path) -> None:
    """Remove compiled extensions, which hold for one Python only; stop when a package does not work without."""
    for path in [path for pattern in ("*.so", "*.pyd") for path in tree.rglob(pattern)]:
        package = path.relative_to(tree).parts[0]
        if package not in OPTIONAL_C:
            sys.exit(f"{path.relative_to(tree)}: {package} has a C part and is not known to work without it; see deploy/constraints.txt")
        path.unlink()


def add_bytecode(python: str, tree: Path) -> None:
    """Bytecode for one version of Python, which is not compared with the time of the source."""
    command = [python, "-m", "compileall", "-q", "-s", str(tree), "-x", NOT_COMPILED, "--invalidation-mode", "unchecked-hash", str(tree)]
    subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
