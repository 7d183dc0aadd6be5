"""The mutation operators of `make mutate`: every change that they make to a small function, as a literal."""

import ast
from textwrap import dedent

import pytest
from tools.mutation_operators import apply_mutation, mutations


def mutants(source: str) -> list[str]:
    """Return the changed line of every mutant: `operator: line`."""
    text = dedent(source).strip()
    original = ast.unparse(ast.parse(text)).splitlines()
    found = []
    for index in range(len(list(mutations(ast.parse(text))))):
        tree = ast.parse(text)
        mutation = list(mutations(tree))[index]
        changed = ast.unparse(apply_mutation(tree, mutation)).splitlines()
        lines = [line.strip() for line in changed if line not in original]
        found.append(f"{mutation.operator}: {lines[0] if lines else '(deleted)'}")
    return found


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("return a < b", ["return value: return", "comparison: return a <= b"]),
        ("return a in b", ["return value: return", "comparison: return a not in b"]),
        (
            "return a and not b",
            ["return value: return", "boolean: return a or not b", "boolean: return a and b"],
        ),
        ("return a + 1", ["return value: return", "arithmetic: return a - 1", "constant: return a + 2"]),
        ("return a // b", ["return value: return", "arithmetic: return a * b"]),
        ("return min(a, b)", ["return value: return", "builtin: return max(a, b)"]),
        ("return sorted(a, key=b)", ["return value: return", "argument: return sorted(a)"]),
        ("return zip(a, b, strict=True)", ["return value: return"]),
        ("return a.get(b, c)", ["return value: return", "argument: return a.get(b)"]),
        ("return True", ["return value: return", "constant: return False"]),
        ("return False", ["constant: return True"]),
        ("a.append(b)", ["statement: pass"]),
        ("del a[b]", ["statement: pass"]),
        ("a.b = c", ["statement: pass"]),
    ],
)
def test_each_operator_changes_one_thing(statement: str, expected: list[str]) -> None:
    assert mutants(f"def function(a, b, c):\n    {statement}") == expected


@pytest.mark.parametrize(
    "source",
    [
        "LIMIT = 1 + 1",
        'def function():\n    """Says 1 < 2."""',
        "def function(a):\n    return None",
        "def function(a):\n    assert a > 0",
        'def function(a):\n    log.info("%s is wrong", a + 1)',
        "def __repr__(self):\n    return str(1 + 1)",
        "class A:\n    def __init__(self):\n        self.b = c",
        "def function(a: int = 0, *, b: bool = True) -> None: ...",
    ],
)
def test_what_no_test_could_notice_is_not_mutated(source: str) -> None:
    assert mutants(source) == []


def test_a_local_variable_is_not_deleted_unless_it_has_another_value() -> None:
    assert mutants("def function(a):\n    b = a") == []
    assert mutants("def function(a):\n    a = b") == ["statement: pass"]


def test_messages_are_not_mutated_but_errors_can_be_dropped() -> None:
    source = """
    def function(a):
        if a == b:
            raise ValueError(f"{a + 1} is wrong")
    """
    assert mutants(source) == ["comparison: if a != b:", "statement: pass"]


def test_a_function_of_several_statements_can_return_at_once() -> None:
    source = """
    def function(a):
        a.append(b)
        a.clear()
    """
    assert mutants(source) == ["early return: return", "statement: pass", "statement: pass"]


def test_methods_and_nested_functions_are_mutated() -> None:
    source = """
    class A:
        def method(self):
            def nested(a):
                return a > b
            return nested
    """
    assert mutants(source)[1:] == [
        "return value: return",
        "comparison: return a >= b",
        "return value: return",
    ]
