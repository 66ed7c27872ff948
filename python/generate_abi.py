#!/usr/bin/env python3
"""Generates the Python side of the C interface: remat/_abi.py (structs, enums, functions) and remat/_builders.py (the
methods of remat.Graph and the members of remat_config, with the headers' comments as docstrings).

    python3 generate_abi.py LIBRARY            write both files; LIBRARY: the path of libremat.so
    python3 generate_abi.py LIBRARY --check    compare them with the headers, the library's exported functions, and the
                                               compiler's sizes and offsets

Needs pycparser, a C compiler (CC, or cc) and nm.
"""

import argparse
import ctypes
import importlib
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import types

from pycparser import c_ast, c_parser

HERE = pathlib.Path(__file__).resolve().parent
HEADERS = HERE.parent / "engine"
CC = os.environ.get("CC", "cc")
SCALARS = {
    "_Bool": "bool", "char": "char", "int": "int", "float": "float", "double": "double", "size_t": "size_t",
    **{f"{sign}int{bits}_t": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}  # fmt: skip

# Arguments at the end of a builder's list that PyTorch has defaults for.
DEFAULTS = {
    "allow_neg_eigval": "False", "base": "10000.0", "blank": "0", "causal": "False", "delta": "1.0", "dilation": "1", "epsilon": "1e-5",
    "groups": "1", "ignored": "-100", "joint": "False", "momentum": "0.1", "padding": "0", "smoothing": "0.0", "stride": "1",
    "sync": "False", "zero_infinity": "False",
}  # fmt: skip
NO_DEFAULT = {("rms_norm", "epsilon"), ("softmax_cross_entropy_smoothed", "smoothing")}


# ---- Headers --------------------------------------------------------------------------------------------------------


def preprocessed() -> str:
    """The headers as one C text. Only the types that they use stand in for the system's headers."""
    stubs = {
        "stdbool.h": "typedef _Bool bool;",
        "stddef.h": "typedef unsigned long size_t;",
        "stdint.h": "".join(
            f"typedef {c} int{b}_t; typedef unsigned {c} uint{b}_t;"
            for b, c in ((8, "char"), (16, "short"), (32, "int"), (64, "long"))
        ),
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, text in stubs.items():
            pathlib.Path(folder, name).write_text(text)
        flags = ["-E", "-P", "-nostdinc", f"-I{folder}", "-D__attribute__(x)=", str(HEADERS / "remat_op.h")]
        return subprocess.run([CC, *flags], check=True, capture_output=True, text=True).stdout


class Interface:
    """What the headers declare, in their order."""

    def __init__(self) -> None:
        self.enums: dict[str, dict[str, int]] = {}
        self.structs: dict[str, list[tuple[str, c_ast.Node]]] = {}
        self.functions: dict[str, c_ast.FuncDecl] = {}
        self.aliases: dict[str, c_ast.Node] = {}
        self.numbers: dict[str, int] = {}
        for node in c_parser.CParser().parse(preprocessed()).ext:
            self._declare(node)

    def _declare(self, node: c_ast.Node) -> None:
        declared = node.type
        if isinstance(declared, c_ast.FuncDecl) and not isinstance(node, c_ast.Typedef):
            self.functions[node.name] = declared
            return
        inner = declared.type if isinstance(declared, c_ast.TypeDecl) else declared
        if isinstance(inner, c_ast.Enum):
            self._enum(node.name, inner)
        elif isinstance(inner, c_ast.Struct) and inner.decls:
            self.structs[node.name or inner.name] = [(member.name, member.type) for member in inner.decls]
        elif isinstance(node, c_ast.Typedef) and not isinstance(inner, c_ast.Struct):
            self.aliases[node.name] = declared

    def _enum(self, name: str | None, node: c_ast.Enum) -> None:
        members, following = {}, 0
        for item in node.values.enumerators:
            following = self.number(item.value) if item.value else following
            members[item.name] = self.numbers[item.name] = following
            following += 1
        if name:
            self.enums[name] = members

    def number(self, node: c_ast.Node) -> int:
        if isinstance(node, c_ast.Constant):
            return int(node.value, 0)
        if isinstance(node, c_ast.ID):
            return self.numbers[node.name]
        raise ValueError(f"cannot evaluate {node}")

    # ---- Types as ctypes expressions, with the annotation of a struct's member

    def ctype(self, node: c_ast.Node) -> str:
        if isinstance(node, c_ast.ArrayDecl):
            return f"{self.ctype(node.type)} * {self.number(node.dim)}" if node.dim else self.pointer(node.type)
        if isinstance(node, c_ast.PtrDecl):
            return self.pointer(node.type)
        if isinstance(node.type, c_ast.Struct):
            if node.type.decls:
                members = ", ".join(f'("{m.name}", {self.ctype(m.type)})' for m in node.type.decls)
                return f"_struct({members})"
            return str(node.type.name)
        name = node.type.names[0]
        if name in self.enums:
            return "c.c_int"
        if name in self.structs:
            return str(name)
        return f"c.c_{SCALARS[name]}" if name in SCALARS else self.ctype(self.aliases[name])

    def argument(self, node: c_ast.Node) -> str:
        """An array as an argument of a function is a pointer."""
        return self.pointer(node.type) if isinstance(node, c_ast.ArrayDecl) else self.ctype(node)

    def pointer(self, to: c_ast.Node) -> str:
        if isinstance(to, c_ast.PtrDecl):
            return f"c.POINTER({self.pointer(to.type)})"
        if isinstance(to, c_ast.FuncDecl):
            return "c.c_void_p"
        if isinstance(to.type, c_ast.Struct):
            return f"c.POINTER({to.type.name})" if to.type.name in self.structs else "c.c_void_p"
        name = to.type.names[0]
        if name == "char":  # char * that is not const is to be freed: it stays an address
            return "c.c_char_p" if "const" in to.quals else "c.c_void_p"
        known = name in SCALARS or name in self.structs or name in self.enums
        return f"c.POINTER({self.ctype(to)})" if known else "c.c_void_p"

    @staticmethod
    def annotation(ctype: str) -> str:
        if ctype == "c.c_char_p":
            return "_Text"
        if ctype in ("c.c_double", "c.c_float"):
            return "float"
        if ctype == "c.c_bool":
            return "_Flag"
        if ctype == "c.c_void_p":
            return "_Address"
        return "int" if re.fullmatch(r"c\.c_(u?int\d*|size_t)", ctype) else "_Any"


# ---- _abi.py --------------------------------------------------------------------------------------------------------

ABI_HEAD = '''"""The C interface: constants, structs and functions of remat.h and remat_op.h.

Generated by generate_abi.py. Do not edit.
"""

import ctypes as c
import enum
from typing import Any as _Any

_Text = bytes | None
_Flag = bool
_Address = int | None


def _struct(*fields: tuple[str, _Any]) -> type[c.Structure]:
    return type("struct", (c.Structure,), {"_fields_": list(fields)})
'''


def is_void(node: c_ast.Node) -> bool:
    return isinstance(node, c_ast.TypeDecl) and getattr(node.type, "names", None) == ["void"]


def class_name(name: str) -> str:
    return "".join(word.title() for word in name.removeprefix("remat_").split("_"))


def shared_beginning(members: list[str]) -> str:
    """REMAT_INIT_ of REMAT_INIT_ZERO, REMAT_INIT_NORMAL."""
    return os.path.commonprefix([m[: m.rindex("_") + 1] for m in members])


def abi_text(headers: Interface) -> str:
    lines = [ABI_HEAD]
    for name, members in headers.enums.items():
        beginning = shared_beginning(list(members))
        lines.append(f"\nclass {class_name(name)}(enum.IntEnum):")
        lines += [f"    {member.removeprefix(beginning)} = {value}" for member, value in members.items()] + [""]
    for name, members in headers.structs.items():
        lines.append(f"\nclass {name}(c.Structure):")
        fields = [(member, headers.ctype(node)) for member, node in members]
        lines += [f"    {member}: {headers.annotation(ctype)}" for member, ctype in fields]
        lines += ["    _fields_ = ["] + [f'        ("{m}", {ctype}),' for m, ctype in fields] + ["    ]", ""]
    lines += ["\n# Result and arguments of each function.", "FUNCTIONS: dict[str, tuple[_Any, list[_Any]]] = {"]
    for name, declared in headers.functions.items():
        result = "None" if is_void(declared.type) else headers.argument(declared.type)
        parameters = [p.type for p in declared.args.params if not isinstance(p, c_ast.EllipsisParam)]
        arguments = [headers.argument(p) for p in parameters if not is_void(p)]
        lines.append(f'    "{name}": ({result}, [{", ".join(arguments)}]),')
    return "\n".join([*lines, "}", ""])


# ---- _builders.py ---------------------------------------------------------------------------------------------------

BUILDERS_HEAD = '''"""The methods of remat.Graph, and the members of remat_config.

Generated by generate_abi.py from the library's table of builders and the headers' comments. Do not edit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, TypedDict

if TYPE_CHECKING:
    from .graph import Cell, Init, Value
'''
TYPES = {
    "VALUE": "Value", "VALUES": "Sequence[Value]", "INT": "int", "INT64": "int", "INT64S": "Sequence[int]",
    "DOUBLE": "float", "BOOL": "bool", "TEXT": "str", "INIT": "Init", "CELL": "Cell",
    "DTYPE": 'Literal["f32", "i32"]', "AXIS": 'Literal["static", "sequence"]',
    "UPSAMPLE": 'Literal["nearest", "bilinear", "bilinear_corners"]',
}  # fmt: skip


def comments(header: str) -> dict[str, str]:
    """The comment of each builder: on its line, or before it or others above it."""
    text = (HEADERS / "remat" / header).read_text()
    token = re.compile(r"/\*(.*?)\*/[ ]*|remat_value remat_(\w+)\(remat_graph[^;]*;[ ]*(?:/\*(.*?)\*/)?|\n\n", re.S)
    found, last = {}, ""
    for match in token.finditer(text):
        comment, name, beside = match.groups()
        if name:
            found[name] = tidy(beside or last)
        else:
            last = comment or ""  # an empty line ends what a comment is about
    return found


def tidy(comment: str) -> str:
    lines = [re.sub(r"^ *\* ?", "", line) for line in comment.strip().split("\n")]
    return re.sub(r"\bremat_(\w+)", r"\1", "\n".join(lines)).replace("NULL", "None").strip()


def docstring(text: str, indent: str) -> list[str]:
    return [f'{indent}"""' + f"\n{indent}".join(text.replace("\\", "\\\\").split("\n")).replace(f"\n{indent}\n", "\n\n") + '"""']


def signature(builder: str, arguments: list[types.SimpleNamespace]) -> list[tuple[str, str]]:
    """(name, declaration) of each argument. Lengths are those of the lists; defaults are of arguments at the end."""
    lengths = {a.length_is for a in arguments}
    shown, needed = [], False
    for a in reversed([a for a in arguments if a.name not in lengths]):
        kind = TYPES[a.kind] if a.length != 2 else "int | Sequence[int]"
        unusual = a.kind.startswith("VALUE") or (builder, a.name) in NO_DEFAULT
        default = "None" if a.optional else None if unusual else DEFAULTS.get(a.name)
        needed = needed or default is None
        kind += " | None" if a.optional else ""
        shown.append((a.name, f"{a.name}: {kind}" + ("" if needed else f" = {default}")))
    return shown[::-1]


def builder_table(library: str) -> dict[str, list[types.SimpleNamespace]]:
    abi = importlib.import_module("remat._abi")
    lib = ctypes.CDLL(library)
    table = {}
    for i in range(lib.remat_builder_count()):
        builder = abi.remat_builder()
        assert lib.remat_builder_info(ctypes.c_int64(i), ctypes.byref(builder)) == 0
        table[builder.name.decode().removeprefix("remat_")] = [
            types.SimpleNamespace(
                name=a.name.decode(), kind=abi.ArgumentKind(a.kind).name, optional=a.optional, length=a.length,
                length_is=a.length_is.decode() if a.length_is else None,
            )
            for a in builder.arguments[: builder.n_arguments]
        ]  # fmt: skip
    return table


def config_members(headers: Interface) -> list[tuple[str, str, str]]:
    """(name, type, comment) of the members of remat_config that are numbers, flags and texts."""
    text = (HEADERS / "remat" / "session.h").read_text()
    body = text[text.index("    size_t struct_bytes;     /* sizeof(remat_config)") : text.index("} remat_config;")]
    said, names = {}, [name for name, _ in headers.structs["remat_config"]]
    for declared, comment in re.findall(r"([^;{}]*?(?:;[^;/]*?)*);\s*/\*(.*?)\*/", body, re.S):
        for name in re.findall(r"\w+", declared):
            if name in names:
                said[name] = re.sub(r"\s+", " ", comment).replace("NULL", "None").strip()
    types_of = {"c.c_char_p": "str", "c.c_bool": "bool", "c.c_double": "float"}
    members = []
    for name, node in headers.structs["remat_config"]:
        ctype = headers.ctype(node)
        if ctype.startswith("c.POINTER") or ctype == "c.c_void_p" or name == "struct_bytes" or name.startswith("n_"):
            continue
        kind = "int | str" if name == "memory_budget" else types_of.get(ctype, "int")
        members.append((name, kind, said.get(name, "")))
    return members


def builders_text(headers: Interface, library: str) -> str:
    said = {**comments("graph.h"), **comments("layers.h")}
    lines = [BUILDERS_HEAD, "", "class Builders:", '    """The layers of remat.h under their names."""', ""]
    lines += ["    def _build(self, name: str, *arguments: object) -> Value:", "        raise NotImplementedError", ""]
    for name, arguments in builder_table(library).items():
        shown = signature(name, arguments)
        lines.append(f"    def {name}(self, {', '.join(declared for _, declared in shown)}) -> Value:")
        lines += docstring(said[name], "        ")
        lines += [f'        return self._build("{name}", {", ".join(argument for argument, _ in shown)})', ""]
    members = config_members(headers)
    lines += ["", "class Config(TypedDict, total=False):", '    """Settings of a session, by remat_config\'s names.', ""]
    for name, _, comment in members:
        lines.append(f"    {name}: {comment}".rstrip().replace("\\", "\\\\"))
    lines += ['    """', ""] + [f"    {name}: {kind}" for name, kind, _ in members]
    return "\n".join([*lines, ""])


# ---- Checks ---------------------------------------------------------------------------------------------------------


def check_exports(headers: Interface, library: str) -> None:
    listed = subprocess.run(["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True).stdout
    exported = set(re.findall(r"[TW] (remat_\w+)", listed))
    if exported != set(headers.functions):
        sys.exit(f"declared or exported, not both: {sorted(exported ^ set(headers.functions))}")


def check_layout(headers: Interface) -> None:
    abi = importlib.import_module("remat._abi")
    ours, questions = [], []
    for name, members in headers.structs.items():
        struct = getattr(abi, name)
        c_name = name if name != "remat_ranks" else "struct remat_ranks"
        ours.append(f"{name} {ctypes.sizeof(struct)}")
        questions.append(f'printf("{name} %zu\\n", sizeof({c_name}));')
        for member, _ in members:
            ours.append(f"{name}.{member} {getattr(struct, member).offset}")
            questions.append(f'printf("{name}.{member} %zu\\n", offsetof({c_name}, {member}));')
    program = f'#include <stdio.h>\n#include "remat_op.h"\nint main(void) {{ {" ".join(questions)} }}\n'
    with tempfile.TemporaryDirectory() as folder:
        run = [CC, "-x", "c", "-", f"-I{HEADERS}", "-o", f"{folder}/sizes"]
        subprocess.run(run, check=True, input=program, text=True)
        theirs = subprocess.run([f"{folder}/sizes"], check=True, capture_output=True, text=True).stdout.split("\n")[:-1]
    for mine, compilers in zip(ours, theirs, strict=True):
        if mine != compilers:
            sys.exit(f"_abi.py has {mine}, the compiler {compilers}")


def main() -> None:
    arguments = argparse.ArgumentParser(description="Generates remat/_abi.py and remat/_builders.py.")
    arguments.add_argument("library", help="path of libremat.so")
    arguments.add_argument("--check", action="store_true", help="compare instead of writing")
    given = arguments.parse_args()
    headers = Interface()
    package = types.ModuleType("remat")  # so that remat._abi alone is imported
    package.__path__ = [str(HERE / "remat")]
    sys.modules["remat"] = package
    for name, text in (
        ("_abi.py", lambda: abi_text(headers)),
        ("_builders.py", lambda: builders_text(headers, given.library)),
    ):
        path, made = HERE / "remat" / name, text()
        if not given.check:
            path.write_text(made)
        elif path.read_text() != made:
            sys.exit(f"{path} differs from the headers; run: python3 {pathlib.Path(__file__)} {given.library}")
    check_layout(headers)
    check_exports(headers, given.library)


if __name__ == "__main__":
    main()
