"""The build: beside each YAML matrix goes its JSON form, which an installed dsdoctor reads in a fraction of the time."""

import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent


class BuildWithMatrices(build_py):
    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            sys.path.insert(0, str(ROOT))
            from dsdoctor.matrix import compile_directory

            compile_directory(ROOT / "matrices", Path(self.build_lib) / "dsdoctor" / "matrices")


setup(cmdclass={"build_py": BuildWithMatrices})
