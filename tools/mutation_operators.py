"""Mutation operators: small changes of a function's syntax tree that a test should notice.

Not mutated: statements outside functions, annotations, decorators, default values, docstrings, error and log messages,
formatted strings, assertions, `__repr__` and `__str__`, and what would always raise an exception, such as an attribute
that is not set.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
}
BUILTINS = {"min": "max", "max": "min", "any": "all", "all": "any"}

OPTIONAL_LAST_ARGUMENT = frozenset({"get", "pop", "next", "getattr", "range", "enumerate", "round", "sum"})

DELETABLE = (ast.Expr, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Delete, ast.Raise, ast.Continue, ast.Break)
UNMUTATED_FUNCTIONS = frozenset({"__repr__", "__str__"})
LOG_LEVELS = frozenset({"debug", "info", "warning", "error", "exception"})
UNNOTICEABLE_ARGUMENTS = frozenset({"strict", "flush", "encoding", "newline", "help", "metavar"})
"""Checks of what is always so, texts, and what makes no difference on the machines that tests run on."""

NON_NUMERIC = (ast.JoinedStr, ast.List, ast.Tuple, ast.ListComp, ast.Dict, ast.Set)

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Mutation:
    """Replace `node` by `replacement`. `first_line` and `last_line` are those whose execution reaches the change."""

    operator: str
    node: ast.AST
    replacement: ast.AST
    first_line: int
    last_line: int


def mutations(tree: ast.Module) -> Iterator[Mutation]:
    """Yield all mutations of the functions of a module, in the order of the source."""
    for function in _functions(tree):
        yield from _FunctionMutations(function).all()


def apply_mutation(tree: ast.Module, mutation: Mutation) -> ast.Module:
    """Apply a mutation to the tree that it was found in, and return the tree."""
    _Replace(mutation).visit(tree)
    return ast.fix_missing_locations(tree)


def _functions(node: ast.AST) -> Iterator[FunctionNode]:
    """Yield the functions and methods that are not nested in a function."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, FunctionNode):
            if child.name not in UNMUTATED_FUNCTIONS:
                yield child
        elif isinstance(child, ast.ClassDef | ast.If):
            yield from _functions(child)


class _FunctionMutations:
    def __init__(self, function: FunctionNode) -> None:
        self._function = function
        self._assigned = Counter(
            node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        )
        self._arguments = {node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg)}

    def all(self) -> Iterator[Mutation]:
        body = _without_docstring(self._function.body)
        if len(body) > 1 and self._function.name != "__init__":
            first = body[0]
            early = [ast.copy_location(ast.Return(value=None), first), first]
            yield Mutation("early return", first, ast.Module(early, []), first.lineno, first.lineno)
        yield from self._of_body(body)

    def _of_body(self, body: list[ast.stmt]) -> Iterator[Mutation]:
        for statement in body:
            yield from self._of_statement(statement)

    def _of_statement(self, statement: ast.stmt) -> Iterator[Mutation]:
        if _is_log_message(statement):
            return
        if self._is_deletable(statement):
            last = statement.end_lineno or statement.lineno
            yield Mutation("statement", statement, ast.copy_location(ast.Pass(), statement), statement.lineno, last)
        if isinstance(statement, ast.Return) and not _is_like_none(statement.value):
            none = ast.copy_location(ast.Return(value=None), statement)
            yield Mutation("return value", statement, none, statement.lineno, statement.end_lineno or statement.lineno)
        if isinstance(statement, FunctionNode):
            yield from self._of_body(_without_docstring(statement.body))
            return
        if isinstance(statement, ast.Assert | ast.Raise | ast.Pass | ast.Global | ast.Nonlocal | ast.Import):
            return
        for child in ast.iter_child_nodes(statement):
            yield from self._of_part(child, statement)

    def _of_part(self, node: ast.AST, statement: ast.stmt) -> Iterator[Mutation]:
        """Yield the mutations of a part of a statement: an expression, a nested statement, a handler or a case."""
        if isinstance(node, ast.stmt):
            yield from self._of_statement(node)
            return
        if isinstance(node, ast.JoinedStr) or _is_annotation(node, statement):
            return
        if isinstance(node, ast.expr):
            last = node.end_lineno or node.lineno
            for operator, replacement in _expression_mutations(node):
                located = ast.copy_location(replacement, node)
                yield Mutation(operator, node, located, min(statement.lineno, node.lineno), last)
        if isinstance(node, ast.keyword) and node.arg in UNNOTICEABLE_ARGUMENTS:
            return
        for child in ast.iter_child_nodes(node):
            if not (isinstance(node, ast.match_case) and isinstance(child, ast.pattern)):
                yield from self._of_part(child, statement)

    def _is_deletable(self, statement: ast.stmt) -> bool:
        """Whether a statement can be deleted such that its function does not always fail for lack of a name."""
        match statement:
            case ast.Expr(value=ast.Constant() | ast.Yield() | ast.YieldFrom()):
                return isinstance(statement.value, ast.Yield | ast.YieldFrom)
            case ast.AnnAssign(value=None):
                return False
            case ast.Assign() | ast.AnnAssign() if self._function.name == "__init__":
                return False
            case ast.Assign() | ast.AnnAssign():
                targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                names = [node for each in targets for node in ast.walk(each) if isinstance(node, ast.Name)]
                stored = [node.id for node in names if isinstance(node.ctx, ast.Store)]
                return all(self._assigned[name] > 1 or name in self._arguments for name in stored)
            case ast.Return():
                return _is_none(statement.value) and statement is not self._function.body[-1]
        return isinstance(statement, DELETABLE)


def _expression_mutations(node: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    match node:
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            for index, operator in enumerate(ops):
                changed = [*ops[:index], COMPARISONS[type(operator)](), *ops[index + 1 :]]
                yield "comparison", ast.Compare(left, changed, comparators)
        case ast.BoolOp(op=op, values=values):
            yield "boolean", ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "boolean", copy(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in ARITHMETIC and _is_numeric(left, right):
            yield "arithmetic", ast.BinOp(left, ARITHMETIC[type(op)](), right)
        case ast.Constant(value=bool(value)):
            yield "constant", ast.Constant(not value)
        case ast.Constant(value=int(value) | float(value)) if value in (0, 1):
            yield "constant", ast.Constant(value + 1)
        case ast.Call():
            yield from _call_mutations(node)


def _call_mutations(call: ast.Call) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(call.func, ast.Name) and call.func.id in BUILTINS:
        yield "builtin", ast.Call(ast.Name(BUILTINS[call.func.id], ast.Load()), call.args, call.keywords)
    for index, keyword in enumerate(call.keywords):
        if keyword.arg is not None and keyword.arg not in UNNOTICEABLE_ARGUMENTS:
            yield "argument", ast.Call(call.func, call.args, [*call.keywords[:index], *call.keywords[index + 1 :]])
    if _last_is_optional(call):
        yield "argument", ast.Call(call.func, call.args[:-1], call.keywords)


def _last_is_optional(call: ast.Call) -> bool:
    name = call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")
    return len(call.args) >= 2 and name in OPTIONAL_LAST_ARGUMENT and not _is_none(call.args[-1])


def _is_numeric(*operands: ast.expr) -> bool:
    return not any(
        isinstance(each, NON_NUMERIC) or (isinstance(each, ast.Constant) and isinstance(each.value, str))
        for each in operands
    )


def _is_none(value: ast.expr | None) -> bool:
    return value is None or (isinstance(value, ast.Constant) and value.value is None)


def _is_like_none(value: ast.expr | None) -> bool:
    """Whether a returned value is None, or False, for which callers cannot tell the difference."""
    return value is None or (isinstance(value, ast.Constant) and value.value in (None, False))


def _is_log_message(statement: ast.stmt) -> bool:
    match statement:
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id="log"), attr=attribute))):
            return attribute in LOG_LEVELS
    return False


def _is_annotation(node: ast.AST, statement: ast.stmt) -> bool:
    return isinstance(statement, ast.AnnAssign) and node is statement.annotation


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    first = body[0]
    is_docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    return body[1:] if is_docstring else body


class _Replace(ast.NodeTransformer):
    def __init__(self, mutation: Mutation) -> None:
        self._mutation = mutation

    def visit(self, node: ast.AST) -> ast.AST | list[ast.stmt]:
        if node is not self._mutation.node:
            return super().visit(node)  # type: ignore[no-any-return]
        replacement = self._mutation.replacement
        return replacement.body if isinstance(replacement, ast.Module) else replacement
