"""The oldest Python that is promised, where only a newer one is at hand: what it cannot read is found
by the parser. What it reads and cannot run is found where it is installed, by these very tests."""

from __future__ import annotations

import ast
import re
import unittest
from pathlib import Path
from typing import Set

ROOT = Path(__file__).resolve().parent.parent
OLDEST = (3, 9)


class Versions(unittest.TestCase):
    def test_every_source_is_one_of_the_oldest_version(self) -> None:
        sources = [path for path in ROOT.rglob("*.py") if "build" not in path.parts]
        self.assertGreater(len(sources), 30)
        for path in sources:
            with self.subTest(str(path.relative_to(ROOT))):
                tree = ast.parse(path.read_text(), str(path), feature_version=OLDEST)
                if is_annotated(tree):
                    # Otherwise annotations are carried out, and `int | None` is an error there.
                    self.assertIn("annotations", future_of(tree))

    def test_the_parser_tells_what_is_newer(self) -> None:
        newer = "match x:\n    case 1:\n        pass\n"
        with self.assertRaises(SyntaxError):
            ast.parse(newer, feature_version=OLDEST)

    def test_the_package_promises_the_same_version(self) -> None:
        text = (ROOT / "pyproject.toml").read_text()
        promised = re.search(r'requires-python = ">=(\d+)\.(\d+)"', text)
        assert promised is not None
        self.assertEqual(tuple(map(int, promised.groups())), OLDEST)


def is_annotated(tree: ast.Module) -> bool:
    nodes = ast.walk(tree)
    return any(getattr(it, "annotation", None) or getattr(it, "returns", None) for it in nodes)


def future_of(tree: ast.Module) -> Set[str]:
    imports = [it for it in tree.body if isinstance(it, ast.ImportFrom)]
    return {name.name for it in imports if it.module == "__future__" for name in it.names}
