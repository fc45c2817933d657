"""Makes mutants: one small change each, in the syntax tree of one function.

How it works. A file is parsed once. Every function and method is walked, and each place where an
operator of the list below fits gives one mutant, or two. A mutant is not written to disk: `code_of`
compiles the changed tree and returns the code object of the function, which `planting.py` puts in
the place of the real one.

    comparison    == to !=, < to <= and >=, is to is not, in to not in, and back
    arithmetic    + to -, * to //, << to >>, & to |, += to -=, and back
    boolean       and to or, and back; `not x` to `x`; a condition or an operand negated
    constant      an integer ± 1; True to False, and back; min to max, any to all, and back
    return        `return x` to `return None`
    statement     a call, a raise, an assignment to a field, a `continue` or `break`: left out

Invariants
1. The same source gives the same mutants with the same keys, in the same order; a key depends on
   the function alone, so that results stay valid while other functions change.

Not here: assertions (they check, they do not act), texts and types, log lines, the arguments of an
exception, default values and everything outside of functions. Separate tests compare a layout's
structs and constants with the documents.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Final, NamedTuple

_COMPARISONS: Final[dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]]] = {
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_ARITHMETIC: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitAnd,
}
_SHOWN_MAX: Final = 90
_LOGGERS: Final = ("logger", "log", "_log")
_LEVELS: Final = ("debug", "info", "warning", "error", "critical", "exception")
_TWINS: Final = {"min": "max", "max": "min", "any": "all", "all": "any"}
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one function."""

    key: str
    file: str
    """Path relative to the repository."""
    function: str
    """Qualified name."""
    first_line: int
    """First line of the function with its decorators; with the name it identifies the code."""
    lines: range
    """Lines of the changed statement's head."""
    operator: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.file}:{self.lines.start} {self.function}: `{self.before}` → `{self.after}`"


class _Edit(NamedTuple):
    """`parent.field`, or its element `at`, becomes `new`."""

    parent: ast.AST
    field: str
    at: int | None
    new: ast.AST
    operator: str
    statement: ast.stmt


class Source:
    """One parsed file and its mutants."""

    def __init__(self, path: Path, root: Path) -> None:
        self.path = path
        self.file = path.relative_to(root).as_posix()
        self.module = _module_name(path.relative_to(root))
        self._tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
        self._edits: dict[str, tuple[Mutant, _Edit]] = {}
        for name, function in _functions(self._tree.body, ""):
            self._collect(name, function)

    @property
    def mutants(self) -> list[Mutant]:
        """The mutants in the order of the file."""
        return [mutant for mutant, _ in self._edits.values()]

    def _collect(self, name: str, function: _Function) -> None:
        identity = f"{self.file}\n{name}\n{ast.dump(function)}"
        first_line = min([function.lineno, *(one.lineno for one in function.decorator_list)])
        for number, edit in enumerate(list(_edits_of(function))):
            key = hashlib.sha256(f"{identity}\n{number}".encode()).hexdigest()[:16]
            shown = _shown(edit)
            before = _head(shown)
            old = _apply(edit, edit.new)
            after = _head(edit.new if isinstance(edit.new, ast.stmt) else shown)
            _apply(edit, old)
            mutant = Mutant(
                key=key,
                file=self.file,
                function=name,
                first_line=first_line,
                lines=_lines(edit.statement),
                operator=edit.operator,
                before=before,
                after=after,
            )
            self._edits[key] = mutant, edit

    def code_of(self, mutant: Mutant) -> CodeType:
        """The mutant's function, compiled as part of its file."""
        _, edit = self._edits[mutant.key]
        old = _apply(edit, edit.new)
        try:
            ast.fix_missing_locations(self._tree)
            module = compile(self._tree, str(self.path), "exec", dont_inherit=True)
        finally:
            _apply(edit, old)
        for code in _codes(module):
            if (code.co_qualname, code.co_firstlineno) == (mutant.function, mutant.first_line):
                return code
        raise LookupError(f"no function {mutant.function} in {self.file}")


def _module_name(path: Path) -> str:
    """`…/broker/semel/broker/raft/core.py` is `semel.broker.raft.core`."""
    parts = path.with_suffix("").parts
    return ".".join(parts[parts.index("semel") :]) if "semel" in parts else path.stem


def _functions(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, _Function]]:
    for node in body:
        if isinstance(node, _Function):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node.body, f"{prefix}{node.name}.")


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


def _apply(edit: _Edit, new: ast.AST) -> ast.AST:
    """Puts `new` in its place; returns the old node."""
    if edit.at is None:
        old: ast.AST = getattr(edit.parent, edit.field)
        setattr(edit.parent, edit.field, new)
    else:
        elements = getattr(edit.parent, edit.field)
        old = elements[edit.at]
        elements[edit.at] = new
    return old


def _head(node: ast.AST) -> str:
    """The first line of a statement or of a part of one."""
    return ast.unparse(node).split("\n", 1)[0]


def _shown(edit: _Edit) -> ast.AST:
    """The statement with the change; if it is very long, only the part that has the change."""
    short = isinstance(edit.parent, ast.stmt) or len(_head(edit.statement)) <= _SHOWN_MAX
    return edit.statement if short else edit.parent


def _lines(statement: ast.stmt) -> range:
    body = getattr(statement, "body", None)
    if isinstance(body, list) and body:
        return range(statement.lineno, max(body[0].lineno, statement.lineno + 1))
    return range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)


def _edits_of(function: _Function) -> Iterator[_Edit]:
    nothing = isinstance(function.returns, ast.Constant) and function.returns.value is None
    for at, statement in enumerate(function.body):
        if at == 0 and _is_text(statement):
            continue
        yield from _visit(function, "body", at, statement, statement, returns=not nothing)


def _is_text(node: ast.AST) -> bool:
    """True for a docstring, also one of a field."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _is_log_line(node: ast.AST) -> bool:
    if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
        return False
    called = node.value.func
    return (
        isinstance(called, ast.Attribute)
        and isinstance(called.value, ast.Name)
        and called.value.id in _LOGGERS
        and called.attr in _LEVELS
    )


def _visit(
    parent: ast.AST,
    field: str,
    at: int | None,
    node: ast.AST,
    statement: ast.stmt,
    *,
    returns: bool,
) -> Iterator[_Edit]:
    """Edits at `node` and below it. `returns`: the function around it returns a value."""
    if isinstance(node, ast.Assert | ast.JoinedStr) or _is_text(node) or _is_log_line(node):
        return
    if isinstance(node, ast.stmt):
        statement = node
    for new, operator in _changes(parent, field, node, returns=returns):
        yield _Edit(parent, field, at, new, operator, statement)
    if isinstance(node, ast.Raise):
        return
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "defaults", "kw_defaults", "ctx"):
            continue
        for number, child in enumerate(value if isinstance(value, list) else [value]):
            if isinstance(child, ast.AST):
                index = number if isinstance(value, list) else None
                yield from _visit(node, name, index, child, statement, returns=returns)


def _changes(
    parent: ast.AST, field: str, node: ast.AST, *, returns: bool
) -> Iterator[tuple[ast.AST, str]]:
    match node:
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            for at, operator in enumerate(ops):
                for other in _COMPARISONS[type(operator)]:
                    changed = [*ops[:at], other(), *ops[at + 1 :]]
                    yield ast.Compare(left, changed, comparators), "comparison"
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            yield ast.BinOp(left, _ARITHMETIC[type(op)](), right), "arithmetic"
        case ast.BoolOp(op=op, values=values):
            other_op = ast.Or() if isinstance(op, ast.And) else ast.And()
            yield ast.BoolOp(other_op, values), "boolean"
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield operand, "boolean"
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value), "constant"
        case ast.Constant(value=int(value)):
            yield ast.Constant(value + 1), "constant"
            yield ast.Constant(value - 1), "constant"
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords) if name in _TWINS:
            yield ast.Call(ast.Name(_TWINS[name], ast.Load()), args, keywords), "constant"
        case ast.AugAssign(target=target, op=op, value=operand):
            if type(op) in _ARITHMETIC:
                yield ast.AugAssign(target, _ARITHMETIC[type(op)](), operand), "arithmetic"
            yield ast.Pass(), "statement"
        case ast.Return(value=None) | ast.Raise() | ast.Continue() | ast.Break() | ast.Delete():
            yield ast.Pass(), "statement"
        case ast.Return(value=result) if returns and not _is_none(result):
            yield ast.Return(ast.Constant(None)), "return"
        case ast.Expr(value=ast.Call() | ast.Await(value=ast.Call())):
            yield ast.Pass(), "statement"
        case ast.Assign(targets=targets) if not any(isinstance(t, ast.Name) for t in targets):
            yield ast.Pass(), "statement"
        case ast.AnnAssign(target=ast.Attribute() | ast.Subscript(), value=ast.expr()):
            yield ast.Pass(), "statement"
    if _is_condition(parent, field, node) and not isinstance(node, ast.Compare | ast.UnaryOp):
        assert isinstance(node, ast.expr)
        yield ast.UnaryOp(ast.Not(), node), "boolean"


def _is_none(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_condition(parent: ast.AST, field: str, node: ast.AST) -> bool:
    if field == "test":
        return isinstance(parent, ast.If | ast.While | ast.IfExp)
    if isinstance(parent, ast.BoolOp) and field == "values":
        # The last operand of an `or` is often a default and not a condition.
        return isinstance(parent.op, ast.And) or node is not parent.values[-1]
    return field == "ifs" and isinstance(parent, ast.comprehension)
