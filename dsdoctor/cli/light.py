"""Commands whose arguments are read without pydantic.

typer 0.29 and newer reads every argument through pydantic, whose import is a fifth of a short run. What is text, a name of an enumeration
or a default needs no such help; everything else, wrong input above all, is left to typer. Older releases never come here.
"""

from __future__ import annotations

import enum
from typing import Any

from typer.core import TyperCommand, TyperGroup


class _Light:
    """A command of typer with `PlainText` in place of the readers that its parameters make on first use."""

    def get_params(self, ctx: Any) -> Any:
        params = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if getattr(param, "_runtime_param", param) is None:
                param._runtime_param = PlainText()
        return params


class LightCommand(_Light, TyperCommand):
    """A command."""


class LightGroup(_Light, TyperGroup):
    """A group of commands."""


class PlainText:
    """Reads the value of a parameter where it is what it should be already."""

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """The value as the command takes it; typer's own reader decides when it is not plain."""
        kind = param.type_descriptor.annotation
        if value is None and not param.multiple and param.nargs == 1:
            return None
        if kind == list[str] and isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value):
            return list(value)
        if isinstance(kind, type):
            if type(value) is kind:
                return value
            if issubclass(kind, enum.Enum) and value in [member.value for member in kind]:
                return kind(value)
        param._runtime_param = None
        return param.get_runtime_param().coerce(value, param=param, ctx=ctx)
