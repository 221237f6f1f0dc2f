"""Docstrings below fields: what a setting or an option means, for schemas and help."""

from __future__ import annotations

import ast
import inspect
import sys
from functools import cache
from itertools import pairwise


@cache
def field_docstrings(kind: type, base: type) -> dict[str, str]:
    """Return the docstrings of the fields of a class, and of its bases below `base`."""
    texts: dict[str, str] = {}
    for owner in reversed(kind.__mro__):
        if not (issubclass(owner, base) and inspect.get_annotations(owner)):
            continue
        definition = _classes_of(owner.__module__)[owner.__name__]
        for field, below in pairwise([*ast.iter_child_nodes(definition), None]):
            match field:
                case ast.AnnAssign(target=ast.Name(id=name)):
                    texts.pop(name, None)
                    match below:
                        case ast.Expr(ast.Constant(str(text))):
                            texts[name] = inspect.cleandoc(text)
    return texts


@cache
def _classes_of(module: str) -> dict[str, ast.ClassDef]:
    nodes = ast.parse(inspect.getsource(sys.modules[module])).body
    return {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}
